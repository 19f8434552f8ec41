"""Whatever ends a search, the same command continues it, and finds the same to the last bit."""

from __future__ import annotations

import json
import os
import signal
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra.errors import HydraException

from raysearch.configuration import merge
from raysearch.core.mask import Mask
from raysearch.evaluation.replica import Replica
from raysearch.searching import run as search_run
from raysearch.searching.events import SearchEnded
from raysearch.searching.observer import Tracker
from raysearch.tracking.mlflow import tracker
from tests.cli.answers import evaluations, json_answer, same
from tests.cli.conftest import Run, World, finish, spawn
from tests.faults.injection import (
    MANY,
    SHARDS,
    assert_all_gone,
    do,
    kill_at,
    kill_ray,
    ray_process,
    start,
    state,
    wait_for_rows,
)
from tests.processes import wait_for
from tests.tracking.recorded import Recorded

pytestmark = [pytest.mark.slow, pytest.mark.faults]

SEARCHERS: dict[str, dict[str, object]] = {
    "greedy": {},
    "beam": {"searcher.width": 10},
    "genetic": {"searcher.population": 4, "searcher.generations": 2},
    "bayesian": {"searcher.trials": 4, "searcher.initial": 2},
    "cbo": {"searcher.k": 4},
    "cbo_gradient": {"searcher.k": 5},
    "block_influence": {},
    "screened": {"searcher": "beam", "searcher.width": 2, "screening": "confident", "screening.confidence": 0.1},
}
MASKS = 1 + 5 + 10 + 10  # of beam, in three rounds
ROWS = MASKS * SHARDS
DENSE = str(Mask())  # evaluated, but not counted


def searching(world: World, searcher: str, **changes: object) -> list[str]:
    """The words of a search with many moments."""
    return ["search", *world.search(**{**MANY, "searcher": searcher, **SEARCHERS[searcher], **changes}), "--json"]


@pytest.mark.parametrize(
    ("searcher", "kills", "on_ray"),
    [
        *((searcher, 2, False) for searcher in SEARCHERS if searcher != "greedy"),  # a beam of one
        ("screened", 1, True),
        ("cbo_gradient", 1, True),
    ],
)
def test_killed_again_and_again(cwd: Path, world: World, searcher: str, kills: int, on_ray: bool) -> None:
    result = json_answer(do(*searching(world, searcher), "store=undisturbed"))
    undisturbed = evaluations("undisturbed")
    arguments = searching(world, searcher, **{"cluster": "local", "cluster.replicas": 2} if on_ray else {})
    rng = np.random.default_rng([kills, on_ray, *searcher.encode()])
    mark = uuid.uuid4().hex
    for moment in sorted(rng.integers(0, len(undisturbed) - SHARDS, size=kills).tolist()):
        kill_at(arguments, "killed", moment, mark=mark)
        assert moment <= len(evaluations("killed")) < len(undisturbed), "it was killed before its end"
    missing = undisturbed.keys() - evaluations("killed").keys()
    remaining = {subject for _, subject, _ in missing if subject.startswith("{")} - {DENSE}
    again = json_answer(do(*arguments, "store=killed", mark=mark))
    assert same(again, result)
    assert evaluations("killed") == undisturbed
    assert again["evaluations"]["computed"] == len(remaining), "only what was in flight is computed again"
    assert state("killed") == "finished"
    assert not list(Path("killed").glob("ledger.db.?*.lock")), "the locks of the dead are gone"
    assert_all_gone(mark, within_s=30)


def test_ray_itself_is_killed(cwd: Path, world: World) -> None:
    arguments = searching(world, "beam", **{"data.samples": 60, "cluster": "local", "cluster.replicas": 1})
    mark = uuid.uuid4().hex
    for part, rows in (("raylet", 60), ("gcs_server", 500)):
        search = start(*arguments, mark=mark)
        pid = ray_process(search, part)
        wait_for_rows(search, "mlruns", rows)
        kill_ray(search, pid)
        assert_all_gone(mark, within_s=30)
        assert state("mlruns") == "failed"
    earlier_evaluations = evaluations("mlruns")
    inline = [*arguments, "cluster=inline", "cluster.replicas=1"]
    assert same(json_answer(do(*inline)), json_answer(do(*inline, "store=undisturbed")))
    assert earlier_evaluations.items() <= evaluations("mlruns").items()
    assert evaluations("mlruns") == evaluations("undisturbed")


def test_killed_while_mlflow_is_told(cwd: Path, command: list[str]) -> None:
    tracked_command = [*command, "tracking=mlflow"]
    kill_at(tracked_command, "killed", ROWS // 2)
    assert state("killed") == "running", "nobody could say otherwise"
    result = json_answer(do(*tracked_command, "store=killed"))
    recorded = Recorded(Path("killed"))
    recorded.assert_complete(MASKS)
    assert recorded.parent.info.run_id == result["mlflow_run_id"]
    assert recorded.parent.data.metrics["loss/pruned"] == result["loss"]


def test_show_tells_a_killed_search_from_one_that_runs(run: Run, command: list[str]) -> None:
    def states() -> list[str]:
        (listed,) = json.loads(run("show", "--json").out)
        return [listed["state"], json_answer(run("show", "latest", "--json"))["state"]]

    searching = start(*command)
    wait_for_rows(searching, "mlruns", 1)
    os.kill(searching.pid, signal.SIGSTOP)
    assert states() == ["running"] * 2
    searching.kill()
    assert states() == ["interrupted"] * 2, "nothing was written"
    assert state("mlruns") == "running", "nothing was written"
    refused = run("export", "latest", "--out", "x").err
    assert "is interrupted, so nothing is found yet; first: raysearch resume" in refused
    json_answer(run("resume", "latest", "--json"))
    assert states() == ["finished"] * 2


@pytest.mark.parametrize("ending", ["ctrl-c", "sigterm"])
def test_stopped(run: Run, command: list[str], undisturbed: dict[str, Any], ending: str) -> None:
    mark = uuid.uuid4().hex
    on_ray = [*command, "cluster=local", "cluster.replicas=1"]
    on_ray.remove("cluster=inline")
    started = start(*on_ray, "store=my store", mark=mark)
    wait_for_rows(started, "my store", ROWS // 3)
    if ending == "ctrl-c":
        started.interrupt()  # as a terminal does
    else:
        started.process.terminate()  # as a scheduler does
    outcome = started.finish(30)

    assert outcome.code == 130
    assert outcome.out == ""
    assert "Traceback" not in outcome.err, "Ray's handler would abort it soon"
    assert "SIGTERM received" not in outcome.err, "Ray's handler would abort it soon"
    advice = f"raysearch resume {undisturbed['search_id']} --store 'my store'"
    assert outcome.err.splitlines()[-1] == f"stopped; the same command again resumes from here, and so does: {advice}"
    assert_all_gone(mark, within_s=20)
    assert state("my store") == "interrupted"
    result = json_answer(run(*command, "store=my store"))
    assert same(result, undisturbed)
    assert result["evaluations"]["cached"] > 0


def test_stopped_before_there_is_anything_to_go_on_from(cwd: Path, command: list[str]) -> None:
    process = spawn(*command)
    wait_for(lambda: catches(process.pid, signal.SIGTERM), 60, every_s=0.01)
    os.killpg(process.pid, signal.SIGINT)
    outcome = finish(process, 30)
    assert outcome.code == 130
    assert "Traceback" not in outcome.err
    assert "resume" not in outcome.err


def catches(process: int, number: signal.Signals) -> bool:
    """Whether a process does something of its own at a signal, which a command does from its first line on."""
    status = dict(line.split(":\t") for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return bool(int(status["SigCgt"], 16) >> (number - 1) & 1)


def test_stopped_where_a_library_makes_an_error_of_it(
    run: Run, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def compose(*_: object, **__: object) -> None:
        try:
            stop()
        except KeyboardInterrupt as error:
            raise HydraException from error

    monkeypatch.setattr(merge, "initialize_config_dir", compose)
    merge._merge_files.cache_clear()
    outcome = run(*command)
    assert (outcome.code, outcome.out, outcome.err) == (130, "", "stopped; the same command again resumes from here\n")


def test_searches_that_start_together_compute_nothing_twice(cwd: Path, world: World, command: list[str]) -> None:
    beam, narrow = (json_answer(each.finish()) for each in [start(*command), start(*searching(world, "greedy"))])
    distinct = {mask for _, mask, _ in evaluations("mlruns")}
    assert len(distinct) == MASKS, "greedy sees nothing that beam does not"
    assert beam["evaluations"]["computed"] + narrow["evaluations"]["computed"] == MASKS - 1, "and the dense model"
    assert beam["dense_loss"] == narrow["dense_loss"]


def test_stopped_while_the_tracker_says_its_last_word(
    run: Run, command: list[str], undisturbed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(Tracker):
        def on_search_ended(self, event: SearchEnded) -> None:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(tracker, "open_tracker", lambda *_: Slow())
        assert run(*command).code == 130
    assert state("mlruns") == "finished"
    listed = json.loads(run("show", "latest", "--json").out)
    assert same(listed["result"], undisturbed)


def test_a_finished_search_stays_found(
    run: Run, command: list[str], undisturbed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("undisturbed").rename("mlruns")
    with monkeypatch.context() as patch:
        patch.setattr(search_run, "run_rounds", stop)
        assert run(*command).code == 130
    listed = json.loads(run("show", "latest", "--json").out)
    assert listed["state"] == "interrupted"
    assert same(listed["result"], undisturbed)


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
    assert outcome.err.splitlines()[-1] == cause
    assert "Traceback" not in outcome.err
    assert state("mlruns") == "failed"
    assert len(evaluations("mlruns")) == 9 * 6
    assert same(json_answer(run(*command)), undisturbed)


def test_a_score_that_is_stopped_says_how_to_go_on(run: Run, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Replica, "evaluate", stop)
    outcome = run("score", *world.overrides(masks="[[1]]"), "--json")
    assert (outcome.code, outcome.out) == (130, "")
    assert outcome.err == "stopped; the same command again resumes from here\n"
