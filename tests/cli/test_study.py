"""Studies: grids of searches on Ray Tune that share replicas and ledger, and go on whatever ended them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from raysearch import build
from raysearch.evaluation.ledger import opened
from raysearch.evaluation.runs import read_runs
from raysearch.evaluation.studies import find_study
from raysearch.studies.plan import plan_study
from raysearch.studies.running import SilentStudyObserver, run_study
from tests.cli.conftest import Outcome, Run, World, finish, spawn

SEARCHERS = ("one_shot", "greedy", "beam", "random")


def study_words(world: World, **changes: Any) -> list[str]:
    """The words of a study that takes seconds, but for the start of Ray."""
    keys = {"cluster": "local", "cluster.replicas": 2, "tracking": "none"}
    axes = [f"study.grid.searcher=[{','.join(SEARCHERS)}]", "study.grid.remove=[1,2]"]
    return [*world.words(**{**keys, **changes}), *axes]


def told(outcome: Outcome) -> dict[str, Any]:
    assert outcome.code == 0, outcome.err
    value: dict[str, Any] = json.loads(outcome.out)
    return value


def evaluations(store: Path) -> dict[tuple[str, str, int], bytes]:
    """Every row of a ledger, which must be whole."""
    with closing(sqlite3.connect(store / "ledger.db")) as ledger:
        assert ledger.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        rows = ledger.execute("SELECT calibration, subject, shard, samples FROM evaluations")
        return {(calibration, mask, shard): blob for calibration, mask, shard, blob in rows}


@pytest.fixture(scope="module")
def done(world: World, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """A study that nothing happened to: what it told, and its folder."""
    folder = tmp_path_factory.mktemp("study")
    before = Path.cwd()
    os.chdir(folder)
    try:
        return told(finish(spawn("study", *study_words(world), "--json"))), folder
    finally:
        os.chdir(before)


def test_all_searches_are_done_and_counted(done: tuple[dict[str, Any], Path]) -> None:
    value, folder = done
    assert len(value["cells"]) == 8
    assert all(cell["state"] == "finished" for cell in value["cells"])
    assert 0 < value["layer_forwards"]["shared"] < 0.6 * value["layer_forwards"]["separate"]
    assert value["layer_forwards"]["separate"] < value["layer_forwards"]["naive"]
    assert (folder / value["report"]).read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    with opened(folder / "mlruns/ledger.db") as ledger:
        runs = read_runs(ledger, [cell["run_id"] for cell in value["cells"]])
    computed = sum(run.result["evaluations"]["run"] for run in runs.values() if run.result)
    masks = {mask for _, mask, _ in evaluations(folder / "mlruns")}
    assert computed == len(masks) - 1, "each mask once, whoever asked at the same time; the dense model is not counted"


def test_a_search_alone_finds_the_same(done: tuple[dict[str, Any], Path], world: World, run: Run) -> None:
    value, _ = done
    for cell in value["cells"]:
        words = world.search(searcher=cell["searcher"], remove=cell["remove"])
        alone = told(run("search", *words, "--json", f"store={cell['run_id']}"))
        for key in ("run_id", "removed", "loss", "dense_loss"):
            assert alone[key] == cell[key]
        assert alone["layer_forwards"]["run"] == alone["layer_forwards"]["alone"] == cell["layer_forwards"]["alone"]


def test_one_after_another_searches_run_just_what_is_called_shared(world: World, run: Run) -> None:
    value = told(run("study", *study_words(world), "study.concurrency=1", "--json"))
    with opened(Path("mlruns/ledger.db")) as ledger:
        runs = read_runs(ledger, [cell["run_id"] for cell in value["cells"]])
    for cell in value["cells"]:
        result = runs[cell["run_id"]].result
        assert result is not None
        assert result["layer_forwards"]["run"] == cell["layer_forwards"]["shared"]


def test_a_study_killed_twice_ends_the_same_and_runs_nothing_twice(
    done: tuple[dict[str, Any], Path], world: World, here: Path
) -> None:
    value, folder = done
    known: dict[tuple[str, str, int], bytes] = {}
    for least in (40, 120):
        process = spawn("study", *study_words(world), "--json")
        deadline = time.monotonic() + 90
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
            with contextlib.suppress(sqlite3.OperationalError):  # there is no table yet
                if (here / "mlruns/ledger.db").exists() and len(evaluations(here / "mlruns")) >= least:
                    break
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        now = evaluations(here / "mlruns")
        assert known.items() <= now.items()
        known = now
    again = told(finish(spawn("study", *study_words(world), "--json")))
    assert evaluations(here / "mlruns") == evaluations(folder / "mlruns")
    assert again["study_id"] == value["study_id"]
    for mine, theirs in zip(again["cells"], value["cells"], strict=True):
        for key in ("run_id", "removed", "loss", "dense_loss", "layer_forwards"):
            assert mine[key] == theirs[key]


def test_tune_restores_its_own_experiment(done: tuple[dict[str, Any], Path], world: World, here: Path) -> None:
    value, _ = done
    words = study_words(world)
    process = spawn("study", *words, "--json")
    deadline = time.monotonic() + 90
    while not list(here.glob("mlruns/tune/*/experiment_state-*.json")) and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    record = run_study(build.study_spec(words), SilentStudyObserver(), restore=True)
    with opened(here / "mlruns/ledger.db") as ledger:
        runs = read_runs(ledger, [cell.run_id for cell in record.cells])
    assert {run.state for run in runs.values()} == {"finished"}
    assert [runs[cell["run_id"]].result["removed"] for cell in value["cells"]] == [  # type: ignore[index]
        cell["removed"] for cell in value["cells"]
    ]


def test_a_search_that_fails_stops_no_other_and_is_tried_again_alone(world: World, run: Run, here: Path) -> None:
    words = [*study_words(world)[:-2], "study.grid.searcher=[taylor,one_shot]", "study.grid.remove=[1]"]
    words += ["objective=hidden_cosine", "study.retries=0"]  # which has no gradients
    for tried in range(2):
        outcome = run("study", *words, "--json")
        assert outcome.code == 1
        assert outcome.err.count("this searcher takes gradients") == 2, "as it fails, and at the end"
        assert ("1 search done already" if tried else "2 searches") in outcome.err
        taylor, one_shot = json.loads(outcome.out)["cells"]
        assert (taylor["state"], one_shot["state"]) == ("failed", "finished")
        assert taylor["failure"].startswith("this searcher takes gradients")


def test_a_budget_ends_searches_with_the_best_so_far(world: World, run: Run) -> None:
    words = [*study_words(world)[:-2], "study.grid.remove=[3]", "study.stop.evaluations=9"]
    words += ["study.grid.searcher={BO: searcher=bayesian searcher.initial=2, greedy: searcher=greedy}"]
    value = told(run("study", *words, "--json"))
    bayesian, greedy = value["cells"]
    assert (bayesian["state"], bayesian["evaluations"], len(bayesian["removed"])) == ("stopped", 9, 3)
    assert greedy["state"] == "stopped" and "removed" not in greedy, "5 and 4 masks, and 3 to go"
    again = told(run("study", *words, "--json"))
    assert again["cells"] == value["cells"]


def test_a_budget_spent_before_there_is_a_mask_is_said(world: World, run: Run) -> None:
    words = [*study_words(world)[:-2], "study.grid.searcher=[greedy]", "study.grid.remove=[3]"]
    value = told(run("study", *words, "study.stop.evaluations=6", "--json"))
    (cell,) = value["cells"]
    assert (cell["state"], cell["failure"]) == (
        "stopped",
        "its budget was spent before a mask of 3 layers was scored",
    )
    assert "removed" not in cell


def test_dry_run_tells_cells_cost_and_time(world: World, run: Run, here: Path) -> None:
    plan = told(run("study", *study_words(world), "--dry-run", "--json"))
    assert len(plan["cells"]) == 8
    assert plan["layer_forwards"]["shared"] < plan["layer_forwards"]["separate"] < plan["layer_forwards"]["naive"]
    assert plan["eta_seconds"] > 0
    assert not (here / "mlruns").exists()
    said = run("study", *study_words(world), "--dry-run")
    assert "layer-forwards together instead of" in said.out


def test_the_plan_is_what_searches_of_known_cost_run(done: tuple[dict[str, Any], Path], world: World) -> None:
    plan = plan_study(build.study_spec(study_words(world)))
    value, _ = done
    for planned, cell in zip(plan.cells, value["cells"], strict=True):
        if cell["searcher"] == "one_shot":
            assert planned.evaluations == cell["evaluations"]


def test_report_writes_anew_from_the_ledger_alone(done: tuple[dict[str, Any], Path], run: Run, here: Path) -> None:
    value, folder = done
    told_again = told(run("report", "latest", "--store", folder / "mlruns", "--out", "again", "--json"))
    assert told_again["cells"] == value["cells"]
    assert (here / "again/report.html").is_file()
    with opened(folder / "mlruns/ledger.db") as ledger:
        assert find_study(ledger, value["study_id"][:-3]).study_id == value["study_id"]


def test_what_a_study_found_can_be_assessed_later(done: tuple[dict[str, Any], Path], world: World, run: Run) -> None:
    value, folder = done
    text = f"assess.texts.prose=data=file data.path={world.text} data.samples=all data.sampling=sequential"
    words = ["assess", value["study_id"], "assess=none", text, "assess.seq_len=32", "assess.limit=6"]
    words += ["cluster=inline", "--store", str(folder / "mlruns"), "--json"]
    assessed = told(run(*words))
    (metric,) = assessed["metrics"]
    assert metric["name"] == "prose"
    (dense,) = assessed["dense"].values()
    for cell in assessed["cells"]:
        assert cell["assessed"]["prose"]["value"] != dense["prose"]["value"]
    again = run(*words[:-1])
    assert again.code == 0 and "Report: " in again.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["study.grid.remove=[1,5]"], "remove=5 leaves no layer of the 5"),
        (["study.grid.sercher=[greedy]"], "sercher is no key of this configuration; did you mean 'searcher'"),
        (["study.grid.searcher=[gredy]"], "searcher=gredy is unknown; did you mean 'greedy'"),
        (["study.grid.searcher=greedy"], "study.grid.searcher=greedy is no list"),
        (["study.concurrency=0"], "study.concurrency=0 runs nothing"),
        (["study.stop.evaluations=0"], "study.stop.evaluations=0 ends every search at once"),
        (["study.name=a/b"], "study.name=a/b cannot name a folder"),
        (["cluster=inline", "cluster.replicas=1"], "cluster.backend=inline runs no study"),
        (["study.grid.searcher={a: searcher=greedy, b: searcher=greedy}"], "study.grid has one search twice"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is(
    world: World, run: Run, here: Path, words: list[str], said: str
) -> None:
    given = [
        word for word in study_words(world) if word.partition("=")[0] not in [one.partition("=")[0] for one in words]
    ]
    outcome = run("study", *given, *words)
    assert outcome.code == 2
    assert said in outcome.err
    assert "Traceback" not in outcome.err
    assert not (here / "mlruns/ledger.db").exists()
