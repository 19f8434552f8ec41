"""Searches as trials of Ray Tune: searches that fail, and searches that a budget ends."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raysearch.configuration import build
from raysearch.errors import EvaluationError
from raysearch.searching.observer import Observer, Tracker
from raysearch.searching.run import StudyContext
from raysearch.studies.model_group import prepare
from raysearch.studies.trials import TrialTask, run_trials
from tests.cli.answers import json_answer
from tests.cli.conftest import Run, World
from tests.cli.studies import small_study, study_overrides

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_ray", "blank_report")]


def test_a_search_that_cannot_be_recorded_fails_and_one_with_an_evaluation_error_is_tried_again(
    world: World, cwd: Path
) -> None:
    spec = build.study_spec(study_overrides(world))
    cell = spec.cells[0]
    search = cell.search.with_absolute_paths()
    (cwd / "folder").mkdir()
    search = replace(search, evaluation=replace(search.evaluation, ledger=cwd / "folder"))
    (model_group,) = prepare(spec, Observer())
    context = StudyContext(model_group.info, model_group.prepared_for(cell), {}, None)
    nobody: Any = SimpleNamespace(fleet=SimpleNamespace(is_awaited=bool), recipe=[], most=1, unit_timeout_s="auto")

    def without_luck(warn: Any) -> Tracker:
        with (cwd / "tries").open("a") as tries:
            print("once", file=tries)
        raise EvaluationError("out of luck")

    def killed(warn: Any) -> Tracker:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("it is dead by now")

    trackers = {7: lambda warn: Tracker(), 8: without_luck, 9: killed}
    tasks = {cell: TrialTask(search, context, nobody, tracker) for cell, tracker in trackers.items()}
    failed = run_trials(tasks, spec.options.stop, 1, 1, cwd / "tune", Observer())
    assert failed.keys() == {7, 8, 9}
    assert "ledger=" in failed[7]
    assert "cannot be used" in failed[7]
    assert failed[8] == "out of luck"
    assert (cwd / "tries").read_text() == 2 * "once\n"


def test_a_budget_ends_searches_with_the_best_mask_so_far_or_a_failure_if_there_is_none(world: World, run: Run) -> None:
    searchers = "{BO: searcher=bayesian searcher.initial=2, greedy: searcher=greedy}"
    overrides = [*small_study(world, f"searcher={searchers}", "remove=[3]"), "study.stop.evaluations=9"]
    value = json_answer(run("study", *overrides, "--json"))
    bayesian, greedy = value["cells"]
    assert (bayesian["state"], bayesian["evaluations"], len(bayesian["removed"])) == ("stopped", 9, 3)
    assert greedy["state"] == "stopped", "5 and 4 masks, and 3 to go"
    assert "removed" not in greedy, "5 and 4 masks, and 3 to go"
    assert greedy["failure"] == "its budget was spent before a mask of 3 layers was scored"
    repeated = json_answer(run("study", *overrides, "--json"))
    assert repeated["cells"] == value["cells"]
