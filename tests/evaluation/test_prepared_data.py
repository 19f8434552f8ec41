"""Samples that were drawn before are those that would be drawn now, and no change of a file goes unseen."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raysearch.calibration.objectives.perplexity import PerplexityObjective as Perplexity
from raysearch.configuration import build
from raysearch.evaluation.prepared_data import PreparedData, prepare_data
from raysearch.models.loading import describe
from tests.cli.conftest import World

ITEMS = [
    {"question": f"How many are {n} and one?", "choices": [str(n + 1), "none at all"], "answer": 0} for n in range(9)
]
CASES: dict[str, dict[str, Any]] = {
    "windows": {},
    "documents": {"data.sampling": "truncated", "data.path": "rows.jsonl", "data.samples": 4},
    "choices": {"data": "multiple_choice", "objective": "task_margin", "data.path": "items.jsonl", "data.samples": 6},
    "prompts": {"data": "questions", "objective": "generation_accuracy", "data.path": "items.jsonl"},
}


def prepared(world: World, **changes: object) -> PreparedData:
    """The data of a quick search, as a later command prepares them."""
    spec = build.search_spec(world.search(**{"data.samples": 4, "data.seq_len": 32, **changes})).evaluation
    return prepare_data(spec, describe(spec.model))


def test_kept_samples_are_those_drawn(world: World, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in ITEMS))
    rows = [json.dumps({"text": "a few words " * n}) + "\n" for n in range(1, 20)]
    (here / "rows.jsonl").write_text("".join(rows))
    drawn = {name: prepared(world, **changes) for name, changes in CASES.items()}
    for changes in CASES.values():
        prepared(world, **changes)
    monkeypatch.setattr("raysearch.evaluation.prepared_data.load_tokenizer", lambda _: pytest.fail("it is read"))
    monkeypatch.setattr("raysearch.models.loading._describe", lambda _: pytest.fail("it is built"))
    for name, changes in CASES.items():
        (known,), (new,) = prepared(world, **changes).calibrations, drawn[name].calibrations
        assert known.fingerprint == new.fingerprint and known.text_fingerprint == new.text_fingerprint, name
        assert known.description == new.description and known.n_shards == new.n_shards, name
        for one, other in zip(known.shards, new.shards, strict=True):
            assert np.array_equal(one.input_ids, other.input_ids) and one.answers == other.answers, name


def test_an_objective_of_a_copied_file_is_another_one(world: World, here: Path) -> None:
    @dataclass(frozen=True)
    class PerplexityObjective(Perplexity):
        __module__ = "raysearch.calibration.objectives.mine"

    (calibration,) = prepared(world).calibrations
    spec = build.search_spec(world.search(**{"data.samples": 4, "data.seq_len": 32})).evaluation
    (shipped,) = spec.calibrations
    mine = replace(spec, calibrations=[replace(shipped, objective=PerplexityObjective())])
    (other,) = prepare_data(mine, describe(spec.model)).calibrations
    assert other.fingerprint != calibration.fingerprint and other.text_fingerprint == calibration.text_fingerprint


def test_no_change_of_a_file_goes_unseen(world: World, here: Path) -> None:
    folder, text = here / "model", here / "text.txt"
    shutil.copytree(world.model, folder)
    shutil.copy(world.text, text)
    own = replace(world, model=folder, text=text)

    def state() -> tuple[str, ...]:
        found = prepared(own)
        (calibration,) = found.calibrations
        return found.files.fingerprint, found.files.tokenizer_fingerprint, calibration.text_fingerprint

    first = state()
    assert state() == first
    content = text.read_text()
    text.write_text(content.replace("e", "a"))
    assert [one == other for one, other in zip(state(), first, strict=True)] == [True, True, False]
    text.write_text(content)
    assert state() == first
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 0.25}))
    assert [one == other for one, other in zip(state(), first, strict=True)] == [False, True, True]
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["normalizer"] = {"type": "Lowercase"}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert state()[1] != first[1]
