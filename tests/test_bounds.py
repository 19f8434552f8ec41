"""What would fill the memory or wait forever is refused in one sentence, within seconds."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from raysearch.calibration.dialogues import render_task
from raysearch.calibration.formats.base import Task
from raysearch.errors import UserError
from raysearch.models.loading import load_config
from raysearch.models.source import locate
from raysearch.models.spec import ModelSpec
from raysearch.searchers.genetic import GeneticSearcher
from tests.models.families import FAMILIES

NESTED = "{% for a in range(9999) %}{% for b in range(9999) %}{{ 'a' * 9 }}{% endfor %}{% endfor %}"


DOUBLED = "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}"
WIDE = ["{{ '%1000000000d' % 1 }}", "{{ '{:>9999999999}'.format(1) }}"]


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'a' * 10000000000 }}",
        "{{ 'a' * 99999 * 99999 }}",
        "{{ 9 ** 9 ** 9 }}",
        "{{ lipsum(n=9999) }}",
        NESTED,
        DOUBLED,
        *WIDE,
    ],
)
def test_a_chat_template_that_fills_the_memory(template: str) -> None:
    def is_run(*_: object, **__: object) -> str:
        raise AssertionError("it is run")

    tokenizer = SimpleNamespace(chat_template=template, apply_chat_template=is_run)
    with pytest.raises(UserError, match="chat template raises to a power, adds a text to itself, calls lipsum, or"):
        render_task(Task("", "Is it?", SimpleNamespace(opening=""), True), tokenizer, "row 1")  # type: ignore[arg-type]


def test_a_model_of_too_many_layers_and_one_of_pipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "llama"
    FAMILIES["llama"]().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    spec = ModelSpec("tiny", str(folder), device="cpu")
    for key, value in (("num_hidden_layers", 200_000), ("num_hidden_layers", 0), ("max_position_embeddings", 0)):
        (folder / "config.json").write_text(json.dumps(config | {key: value}))
        with pytest.raises(UserError, match=rf"model=tiny says {key}={value} in its config"):
            load_config(locate(spec))
    with monkeypatch.context() as patch, pytest.raises(UserError, match=r"cannot be read \(Permission denied\); check"):
        patch.setattr("safetensors.safe_open", Mock(side_effect=PermissionError(13, "Permission denied")))
        locate(spec)
    os.mkfifo(folder / "tokenizer.json")
    with pytest.raises(UserError, match=r"tokenizer.json is a pipe or a device"):
        locate(spec)


def test_a_number_that_no_machine_holds() -> None:
    with pytest.raises(UserError, match=r"population=1000000000000 is too many masks to draw; use at most 1000000"):
        GeneticSearcher(population=10**12)
