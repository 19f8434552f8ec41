"""A tiny model with a tokenizer of characters, and what commands are told to train on and to assess by."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import raysearch
from tests.assessment.conftest import of_text
from tests.calibration.tokenizers import BOS, EOS, PLAIN, characters
from tests.cli.conftest import Run, World, cwd, run, world
from tests.models.families import tiny

__all__ = ["cwd", "run", "world"]  # fixtures


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, with random weights."""
    folder = tmp_path_factory.mktemp("tiny") / "model"
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    tokens = {"vocab_size": 303, "bos_token_id": BOS, "eos_token_id": EOS}
    tiny("llama", **sizes, **tokens, max_position_embeddings=64).save_pretrained(folder)
    characters(template=PLAIN).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def other_text(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The words of the text that is searched on, in another order."""
    file = tmp_path_factory.mktemp("other") / "other.txt"
    file.write_text(" ".join(reversed(world.text.read_text().split())))
    return file


@pytest.fixture(scope="session")
def assessed_by(world: World) -> list[str]:
    """The words of a text to assess by."""
    return [
        "assess=none",
        of_text("mine", world.text),
        "assess.seq_len=16",
        "assess.limit=4",
        "assess.probe.enabled=false",
    ]


def search_once(arguments: Iterable[str], paths: pytest.TempPathFactory) -> tuple[str, Path]:
    """Search in a folder of its own; return the search's id, and its store, of which tests take copies."""
    folder = paths.mktemp("searched")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return raysearch.search(*arguments).search_id, folder / "mlruns"


def done(run: Run, *arguments: object) -> Any:
    """What a command prints as JSON, which goes well."""
    outcome = run(*arguments, "--json")
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)
