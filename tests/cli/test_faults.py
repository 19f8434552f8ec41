"""Whatever ends a search, the same command goes on from there, and finds the same to the last bit."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import time
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raysearch.evaluation.ledger import Ledger
from raysearch.evaluation.replica import Replica
from raysearch.evaluation.runs import find_run
from raysearch.mask import Mask
from raysearch.tracking.base import NullTracker
from raysearch.tracking.options import TrackingOptions
from tests.cli.conftest import Outcome, Run, World, alone, finish, spawn

SHARDS = 48
#: Rounds of 6, 10 and 10 masks; every shard of a round is a unit of its own, and so a moment to be killed after.
LONG = {
    "data.samples": SHARDS,
    "data.seq_len": 48,
    "data.shard_samples": 1,
    "searcher": "beam",
    "searcher.width": 10,
    "remove": 3,
}
MASKS = 1 + 5 + 10 + 10
ROWS = MASKS * SHARDS
DENSE = str(Mask())  # evaluated, but not counted
MARK = "RAYSEARCH_TEST_MARK"


@pytest.fixture
def command(world: World) -> list[str]:
    """A search with many moments."""
    return ["search", *world.search(**LONG), "--json"]


@pytest.fixture
def undisturbed(run: Run, command: list[str]) -> dict[str, Any]:
    """What it finds when nothing happens to it."""
    return found(run(*command, "store=undisturbed"))


def found(outcome: Outcome) -> dict[str, Any]:
    """The JSON of a search that went well."""
    assert outcome.code == 0, outcome.err
    result: dict[str, Any] = json.loads(outcome.out)
    return result


def same(result: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two searches found the same, bit for bit."""
    keys = ("run_id", "removed", "removal_order", "dense_loss", "loss", "n_tokens")
    return [result[key] for key in keys] == [other[key] for key in keys]


def losses(store: str) -> dict[tuple[str, str, int], bytes]:
    """Every row of a ledger, which must be whole."""
    with closing(sqlite3.connect(Path(store) / "ledger.db")) as ledger:
        assert ledger.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        rows = ledger.execute("SELECT calibration, subject, shard, samples FROM evaluations")
        return {(calibration, mask, shard): blob for calibration, mask, shard, blob in rows}


def complete(store: str) -> set[str]:
    """The masks of which a ledger knows every shard."""
    known = [mask for _, mask, _ in losses(store)]
    return {mask for mask in known if known.count(mask) == SHARDS}


def state(store: str) -> str:
    """How the ledger's last search stands."""
    with closing(Ledger(Path(store) / "ledger.db")) as ledger:
        return find_run(ledger, "latest").state


def wait_for_rows(process: subprocess.Popen[str], store: str, rows: int) -> None:
    """Returns as soon as the ledger holds so many rows."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        with (
            contextlib.suppress(sqlite3.Error),
            closing(sqlite3.connect(f"file:{store}/ledger.db?mode=ro", uri=True)) as db,
        ):
            if db.execute("SELECT count(*) FROM evaluations").fetchone()[0] >= rows:
                return
        time.sleep(0.002)
    pytest.fail(f"{store} never held {rows} rows")


def marked(mark: str) -> list[str]:
    """The command lines of living processes that inherited the mark, such as Ray's."""
    living = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile, or is somebody else's
            if f"{MARK}={mark}".encode() in (process / "environ").read_bytes():
                living.append((process / "cmdline").read_text().replace("\0", " ").strip())
    return [line for line in living if not line.endswith("Agent")]  # Ray's take a minute to notice that they are alone


def assert_all_gone(mark: str, within_s: float) -> None:
    """Nothing that bears the mark is left, or is about to go."""
    deadline = time.monotonic() + within_s
    while left := marked(mark):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def kill_at(words: list[str], store: str, rows: int, mark: str) -> None:
    """Starts a search, and takes it down without warning as soon as the ledger holds so many rows."""
    process = spawn(*words, f"store={store}", **{MARK: mark})
    wait_for_rows(process, store, rows)
    process.kill()
    assert finish(process).code == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")  # MLflow's own calls
def test_killed_again_and_again(here: Path, command: list[str], undisturbed: dict[str, Any]) -> None:
    moments = sorted(np.random.default_rng(7).integers(1, ROWS - SHARDS, size=2).tolist())
    for moment in moments:
        kill_at([*command, "tracking=mlflow"], "killed", moment, "killed")
    assert state("killed") == "running", "nobody could say otherwise"
    before, known = losses("killed"), complete("killed")
    assert moments[-1] <= len(before) < ROWS
    result = found(alone(*command, "tracking=mlflow", "store=killed"))

    assert same(result, undisturbed)
    assert losses("killed") == losses("undisturbed")
    assert result["evaluations"]["run"] == MASKS - len(known | {DENSE}), "only what was in flight is computed again"
    assert state("killed") == "finished"
    assert not list(Path("killed").glob("ledger.db.?*.lock")), "the locks of the dead are gone"
    check_mlflow("killed", result)


def check_mlflow(store: str, result: dict[str, Any]) -> None:
    """One parent run, and a finished child for each trial, once."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{Path(store).resolve() / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("raysearch")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id], max_results=1000)
    (parent,) = [run for run in runs if run.data.tags["raysearch.kind"] == "search"]
    children = [run for run in runs if run.data.tags["raysearch.kind"] == "trial"]
    assert parent.info.run_id == result["mlflow_run_id"] and parent.info.status == "FINISHED"
    assert parent.data.metrics["loss"] == result["loss"]
    assert sorted(int(child.data.tags["raysearch.trial_index"]) for child in children) == list(range(MASKS))
    assert {child.info.status for child in children} == {"FINISHED"}
    assert all("loss" in child.data.metrics for child in children)


@pytest.mark.slow
@pytest.mark.parametrize("moment", [SHARDS // 2, SHARDS + SHARDS // 2])  # in the statistic, in the masks after it
def test_killed_with_a_statistic(here: Path, run: Run, world: World, moment: int) -> None:
    gradient = {**LONG, "searcher": "cbo", "searcher.couplings": "gradient", "searcher.k": 5}
    del gradient["searcher.width"]
    command = ["search", *world.search(**gradient), "--json"]
    undisturbed = found(run(*command, "store=undisturbed"))
    kill_at(command, "killed", moment, "killed")
    assert same(found(run(*command, "store=killed")), undisturbed)
    assert losses("killed") == losses("undisturbed")


@pytest.mark.slow
def test_killed_on_ray(here: Path, command: list[str], undisturbed: dict[str, Any]) -> None:
    mark = uuid.uuid4().hex
    on_ray = [*command, "cluster=local", "cluster.replicas=2"]
    on_ray.remove("cluster=inline")
    kill_at(on_ray, "killed", int(np.random.default_rng(8).integers(1, ROWS - SHARDS)), mark)
    known = complete("killed")
    result = found(alone(*on_ray, "store=killed"))
    assert same(result, undisturbed) and losses("killed") == losses("undisturbed")
    assert result["evaluations"]["run"] == MASKS - len(known | {DENSE})
    assert_all_gone(mark, within_s=30)


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["ctrl-c", "sigterm"])
def test_stopped(run: Run, here: Path, command: list[str], undisturbed: dict[str, Any], ending: str) -> None:
    mark = uuid.uuid4().hex
    on_ray = [*command, "cluster=local", "cluster.replicas=1"]
    on_ray.remove("cluster=inline")
    process = spawn(*on_ray, "store=my store", **{MARK: mark})
    wait_for_rows(process, "my store", ROWS // 3)
    if ending == "ctrl-c":
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    else:
        process.terminate()  # as a scheduler does
    outcome = finish(process, 30)

    assert outcome.code == 130 and outcome.out == "" and "Traceback" not in outcome.err
    advice = f"raysearch resume {undisturbed['run_id']} --store 'my store'"
    assert outcome.err.splitlines()[-1] == f"stopped; the same command again goes on from here, and so does: {advice}"
    assert_all_gone(mark, within_s=5)
    assert state("my store") == "interrupted"
    again = [
        word for word in command if word.startswith(("cluster", "data", "model", "remove", "searcher", "tracking"))
    ]
    result = found(run("search", *again, "store=my store", "--json"))
    assert same(result, undisturbed) and result["evaluations"]["answered"] > 0


@pytest.mark.slow
def test_stopped_before_there_is_anything_to_go_on_from(here: Path, command: list[str]) -> None:
    process = spawn(*command)
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    outcome = finish(process, 30)
    assert outcome.code == 130 and "Traceback" not in outcome.err and "resume" not in outcome.err


@pytest.mark.slow
def test_searches_that_start_together_compute_nothing_twice(here: Path, command: list[str]) -> None:
    greedy = [word for word in command if not word.startswith("searcher")]
    both = [spawn(*command), spawn(*greedy)]
    beam, narrow = (found(finish(process)) for process in both)
    distinct = {mask for _, mask, _ in losses("mlruns")}
    assert len(distinct) == MASKS, "greedy sees nothing that beam does not"
    assert beam["evaluations"]["run"] + narrow["evaluations"]["run"] == MASKS - 1, "and the dense model"
    assert beam["dense_loss"] == narrow["dense_loss"]


def test_stopped_while_the_tracker_says_its_last_word(
    run: Run, command: list[str], undisturbed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(NullTracker):
        def finish(self, *_: object) -> None:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TrackingOptions, "open", lambda *_: Slow())
        assert run(*command).code == 130
    assert state("mlruns") == "finished"
    listed = json.loads(run("show", "latest", "--json").out)
    assert same(listed["result"], undisturbed)


def test_a_finished_search_stays_found(run: Run, command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    result = found(run(*command))
    with monkeypatch.context() as patch:
        patch.setattr("raysearch.studies.search.run_rounds", stop)
        assert run(*command).code == 130
    listed = json.loads(run("show", "latest", "--json").out)
    assert listed["state"] == "interrupted" and same(listed["result"], result)


def stop(*_: object) -> None:
    """A Ctrl-C at this very moment."""
    raise KeyboardInterrupt


def test_a_failure_is_one_sentence_and_not_the_end(
    run: Run, command: list[str], undisturbed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate = Replica.evaluate

    def cursed(self: Replica, unit: Any) -> Any:
        if unit.shard == 9:
            raise RuntimeError("the memory\nis full")
        return evaluate(self, unit)

    with monkeypatch.context() as patch:
        patch.setattr(Replica, "evaluate", cursed)
        outcome = run(*command)
    assert (outcome.code, outcome.out) == (1, "")
    cause = "failed: 6 mask(s) on shard 9 failed 3 times; the last cause: RuntimeError: is full"
    assert outcome.err.splitlines()[-1] == cause and "Traceback" not in outcome.err
    assert state("mlruns") == "failed" and len(losses("mlruns")) == 9 * 6
    assert same(found(run(*command)), undisturbed)


def test_a_score_that_is_stopped_says_how_to_go_on(run: Run, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Replica, "evaluate", stop)
    outcome = run("score", *world.words(masks="[[1]]"), "--json")
    assert (outcome.code, outcome.out) == (130, "")
    assert outcome.err == "stopped; the same command again goes on from here\n"
