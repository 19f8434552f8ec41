"""Cached samples are the same as newly drawn ones, and every change of a file is detected."""

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
from raysearch.models.description import describe
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


def prepare(world: World, **changes: object) -> PreparedData:
    """The data of a quick search, as a new command prepares them."""
    spec = build.search_spec(world.search(**{"data.samples": 4, "data.seq_len": 32, **changes})).evaluation
    return prepare_data(spec, describe(spec.model))


def test_cached_samples_are_the_drawn_samples(world: World, cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cwd / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in ITEMS))
    rows = [json.dumps({"text": "a few words " * n}) + "\n" for n in range(1, 20)]
    (cwd / "rows.jsonl").write_text("".join(rows))
    drawn = {name: prepare(world, **changes) for name, changes in CASES.items()}
    for changes in CASES.values():
        prepare(world, **changes)
    monkeypatch.setattr("raysearch.evaluation.prepared_data.load_tokenizer", lambda _: pytest.fail("it is read"))
    monkeypatch.setattr("raysearch.models.description._describe", lambda _: pytest.fail("it is built"))
    for name, changes in CASES.items():
        (cached,) = prepare(world, **changes).calibrations
        (new,) = drawn[name].calibrations
        assert cached.fingerprint == new.fingerprint, name
        assert cached.text_fingerprint == new.text_fingerprint, name
        assert cached.description == new.description, name
        assert cached.n_shards == new.n_shards, name
        for cached_shard, new_shard in zip(cached.shards, new.shards, strict=True):
            assert np.array_equal(cached_shard.input_ids, new_shard.input_ids), name
            assert cached_shard.answers == new_shard.answers, name


def test_an_objective_of_a_copied_file_has_another_fingerprint(world: World, cwd: Path) -> None:
    @dataclass(frozen=True)
    class PerplexityObjective(Perplexity):
        __module__ = "raysearch.calibration.objectives.mine"

    (calibration,) = prepare(world).calibrations
    spec = build.search_spec(world.search(**{"data.samples": 4, "data.seq_len": 32})).evaluation
    (shipped,) = spec.calibrations
    copied_spec = replace(spec, calibrations=[replace(shipped, objective=PerplexityObjective())])
    (copied,) = prepare_data(copied_spec, describe(spec.model)).calibrations
    assert copied.fingerprint != calibration.fingerprint
    assert copied.text_fingerprint == calibration.text_fingerprint


def test_every_change_of_a_file_is_detected(world: World, cwd: Path) -> None:
    folder = cwd / "model"
    text = cwd / "text.txt"
    shutil.copytree(world.model, folder)
    shutil.copy(world.text, text)
    copied_world = replace(world, model=folder, text=text)

    def fingerprints() -> tuple[str, ...]:
        prepared = prepare(copied_world)
        (calibration,) = prepared.calibrations
        return prepared.files.fingerprint, prepared.files.tokenizer_fingerprint, calibration.text_fingerprint

    def is_unchanged() -> list[bool]:
        return [fingerprint == before for fingerprint, before in zip(fingerprints(), first, strict=True)]

    first = fingerprints()
    assert fingerprints() == first
    content = text.read_text()
    text.write_text(content.replace("e", "a"))
    assert is_unchanged() == [True, True, False]
    text.write_text(content)
    assert fingerprints() == first
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 0.25}))
    assert is_unchanged() == [False, True, True]
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["normalizer"] = {"type": "Lowercase"}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert fingerprints()[1] != first[1]
