"""A killed study is continued by the same command."""

from __future__ import annotations

import os
import signal
import uuid
from contextlib import closing
from pathlib import Path

import pytest
from mlflow import MlflowClient

from raysearch.ledger.ledger import Ledger
from raysearch.searching.search_record import SEARCHES, with_current_states
from raysearch.tracking.options import MlflowStore
from tests.cli.answers import evaluations, json_answer
from tests.cli.conftest import World
from tests.cli.studies import small_study, study_overrides
from tests.faults.injection import assert_all_gone, do, kill_at, ray_process, start, wait_for_rows

pytestmark = [pytest.mark.slow, pytest.mark.faults]


def test_a_killed_study_ends_the_same_and_runs_nothing_twice(world: World, cwd: Path) -> None:
    arguments = ["study", *study_overrides(world, **{"data.shard_samples": 1}), "--json"]
    value = json_answer(do(*arguments, "store=undisturbed"))
    mark = uuid.uuid4().hex
    kill_at(arguments, "mlruns", 80, mark=mark)
    earlier_evaluations = evaluations("mlruns")
    again = json_answer(do(*arguments, mark=mark))
    assert earlier_evaluations.items() <= evaluations("mlruns").items()
    assert evaluations("mlruns") == evaluations("undisturbed")
    assert again["study_id"] == value["study_id"]
    for mine, theirs in zip(again["cells"], value["cells"], strict=True):
        for key in ("search_id", "removed", "loss", "dense_loss", "layer_forwards"):
            assert mine[key] == theirs[key]
    assert_all_gone(mark, within_s=30)


def test_ray_itself_is_killed_under_a_study(world: World, cwd: Path) -> None:
    arguments = ["study", *study_overrides(world, **{"data.shard_samples": 1})]
    for part, rows in (("raylet", 40), ("gcs_server", 120)):
        command = start(*arguments, RAY_gcs_rpc_server_reconnect_timeout_s="15")  # a minute, unless told
        pid = ray_process(command, part)
        wait_for_rows(command, "mlruns", rows)
        os.kill(pid, signal.SIGKILL)
        outcome = command.finish()
        assert outcome.code == 1, outcome
        assert "died, and the replicas with it; what they had evaluated is in the ledger, and the same" in outcome.err
        assert "Traceback" not in outcome.err
    again = json_answer(do(*arguments, "--json"))
    assert all(cell["removed"] for cell in again["cells"])


def test_a_study_that_is_stopped_leaves_nothing_failed_or_running(world: World, cwd: Path) -> None:
    """The searches lose their replicas before they are told."""
    many_samples = {
        "data.samples": 200,
        "data.seq_len": 15,
        "data.shard_samples": 1,
        "screening": "off",
        "tracking": "mlflow",
    }
    arguments = small_study(
        world, "searcher=[exhaustive,greedy]", "remove=[2]", **{**many_samples, "study.concurrency": 2}
    )
    command = start("study", *arguments)
    wait_for_rows(command, "mlruns", 2, "searches")
    wait_for_rows(command, "mlruns", 40)
    command.process.terminate()  # as a scheduler does
    outcome = command.finish()
    assert outcome.code == 130, outcome
    with closing(Ledger(Path("mlruns/ledger.db"))) as ledger:
        stopped = with_current_states(ledger, SEARCHES.all(ledger))
    assert [(cell.state, cell.failure) for cell in stopped] == [("interrupted", None)] * 2
    client = MlflowClient(MlflowStore.locate(None, Path("mlruns")).uri)
    experiment = client.get_experiment_by_name("raysearch")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    assert {run.info.status for run in runs if run.data.tags["raysearch.kind"] != "trial"} == {"KILLED"}
