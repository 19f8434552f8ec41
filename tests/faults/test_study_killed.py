"""A study that was killed goes on where it was, by the same command or by Tune's own means."""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from raysearch.config import build
from raysearch.ledger.ledger import opened
from raysearch.ledger.searches import read_searches
from raysearch.study.run import SilentStudyObserver, run_study
from tests.cli.conftest import World
from tests.cli.found import evaluations, found
from tests.cli.studies import done, study_words
from tests.faults.injection import assert_all_gone, do, kill_at, start

__all__ = ["done"]  # a fixture

pytestmark = [pytest.mark.slow, pytest.mark.faults]


def test_a_study_killed_twice_ends_the_same_and_runs_nothing_twice(
    done: tuple[dict[str, Any], Path], world: World, here: Path
) -> None:
    value, folder = done
    words = ["study", *study_words(world), "--json"]
    mark = uuid.uuid4().hex
    known: dict[tuple[str, str, int], bytes] = {}
    for least in (40, 120):
        kill_at(words, "mlruns", least, mark=mark)
        now = evaluations("mlruns")
        assert known.items() <= now.items()
        known = now
    again = found(do(*words, mark=mark))
    assert evaluations("mlruns") == evaluations(folder / "mlruns")
    assert again["study_id"] == value["study_id"]
    for mine, theirs in zip(again["cells"], value["cells"], strict=True):
        for key in ("search_id", "removed", "loss", "dense_loss", "layer_forwards"):
            assert mine[key] == theirs[key]
    assert_all_gone(mark, within_s=30)


def test_tune_restores_its_own_experiment(done: tuple[dict[str, Any], Path], world: World, here: Path) -> None:
    value, _ = done
    words = study_words(world)
    study = start("study", *words, "--json")
    deadline = time.monotonic() + 90
    while not list(here.glob("mlruns/tune/*/experiment_state-*.json")):
        assert time.monotonic() < deadline and study.process.is_alive(), study.finish()
        time.sleep(0.1)
    study.kill()
    record = run_study(build.study_spec(words), SilentStudyObserver(), restore=True)
    with opened(here / "mlruns/ledger.db") as ledger:
        runs = read_searches(ledger, [cell.search_id for cell in record.cells])
    assert {run.state for run in runs.values()} == {"finished"}
    assert [runs[cell["search_id"]].result["removed"] for cell in value["cells"]] == [  # type: ignore[index]
        cell["removed"] for cell in value["cells"]
    ]
