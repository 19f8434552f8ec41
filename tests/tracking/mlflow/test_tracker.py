import json
import shutil
import socket
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from raysearch.core.mask import Mask
from raysearch.search.observer import Tracker, repeat
from raysearch.search.result import RoundSummary, Trial
from raysearch.testing.tracker_suite import ACCURACY, TrackerSuite, greedy_search
from raysearch.tracking.mlflow.tracker import MlflowTracker
from raysearch.tracking.store import Store
from tests.tracking.conftest import Served, closed_port, start_python

# MLflow's own calls of SQLAlchemy.
pytestmark = pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")

ARTIFACTS = {"config.yaml", "data.json", "trials.csv", "mask_map.png", "best_so_far.png", "loss_by_size.png"}


@pytest.fixture(autouse=True)
def _store_with_tables(tmp_path: Path, store_with_tables: Path) -> None:
    """MLflow takes a second or more to make its tables, so most tests start on a copy."""
    shutil.copy(store_with_tables, tmp_path / "mlflow.db")


class TestTracker(TrackerSuite):
    def make_tracker(self, folder, warn):
        return Tracker()


class TestMlflowTracker(TrackerSuite):
    @pytest.fixture(autouse=True)
    def _quick_retries(self, monkeypatch):
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")  # 13 s become 3

    def make_tracker(self, folder, warn):
        return MlflowTracker(None, "suite", folder, warn)

    def make_unreachable(self, folder, warn):
        return MlflowTracker(f"http://127.0.0.1:{closed_port()}", "suite", folder, warn)


class Recorded:
    """What MLflow holds of the one search in a store."""

    def __init__(self, folder: Path, uri: str | None = None, name: str = "tests") -> None:
        self.client = MlflowClient(Store.locate(uri, folder).uri)
        experiment = self.client.get_experiment_by_name(name)
        assert experiment is not None
        runs = self.client.search_runs([experiment.experiment_id], max_results=1000)
        [self.parent] = [run for run in runs if run.data.tags["raysearch.kind"] == "search"]
        children = [run for run in runs if run.data.tags["raysearch.kind"] == "trial"]
        assert all(run.data.tags["mlflow.parentRunId"] == self.parent.info.run_id for run in children)
        self.children: dict[int, Run] = {int(run.data.tags["raysearch.trial_index"]): run for run in children}
        assert len(self.children) == len(children), "a trial was written twice"

    def steps(self, metric: str) -> list[int]:
        return [point.step for point in self.client.get_metric_history(self.parent.info.run_id, metric)]

    def artifacts(self) -> set[str]:
        return {file.path for file in self.client.list_artifacts(self.parent.info.run_id)}


def open_tracker(folder: Path, uri: str | None = None, experiment: str = "tests") -> MlflowTracker:
    return MlflowTracker(uri, experiment, folder, pytest.fail, timeout_s=300)


def test_a_search_is_written_in_full(tmp_path):
    folder = tmp_path / "a folder"
    search = greedy_search()
    tracker = open_tracker(folder)
    repeat(search, tracker)
    run_id = tracker.close()

    recorded = Recorded(folder)
    parent = recorded.parent
    assert parent.info.run_id == run_id
    assert (parent.info.run_name, parent.info.status) == (search.search_id, "FINISHED")
    assert parent.data.params["searcher.width"] == "1"
    assert parent.data.params["versions.raysearch"] == "0.1.0"
    assert parent.data.params["n_remove"] == "3"
    assert parent.data.params["removed"] == str(search.mask) == parent.data.tags["raysearch.removed"]
    assert parent.data.metrics["loss"] == pytest.approx(search.loss)
    assert parent.data.metrics["parameters_removed_share"] == 0.25
    assert parent.data.metrics["seconds"] == 7.5
    assert recorded.steps("round_best_loss") == [1, 2, 3]
    assert recorded.steps("best_loss") == [search.evaluations.requested]
    assert recorded.steps("best_loss_by_second") == [7]
    assert recorded.steps("path_loss") == recorded.steps("path_perplexity") == [1, 2, 3]
    assert recorded.steps("remark.ablation") == list(range(8))
    assert parent.data.metrics["remark.gap"] == 0.031 and parent.data.tags["raysearch.remark.solver"] == "proven"
    assert parent.data.metrics["searcher_seconds"] == 0.25 and "raysearch.not_finite" not in parent.data.tags
    assert recorded.artifacts() == ARTIFACTS
    files = folder / "artifacts" / run_id / "artifacts"
    assert (files / "trials.csv").is_file()
    assert json.loads((files / "data.json").read_text()) == search.data
    assert parent.data.tags["raysearch.unit"] == "nats per token"

    assert sorted(recorded.children) == [trial.index for trial in search.trials]
    trial, child = search.trials[-1], recorded.children[len(search.trials) - 1]
    assert child.info.status == "FINISHED"
    assert child.data.params == {"removed": str(trial.mask), "n_removed": "3", "round": "3"}
    assert child.data.metrics["delta"] == pytest.approx(trial.delta)
    assert parent.info.start_time <= child.info.start_time <= child.info.end_time <= parent.info.end_time


def test_a_search_for_accuracy_is_charted_as_such(tmp_path):
    search = greedy_search(measure=ACCURACY)
    tracker = open_tracker(tmp_path)
    repeat(search, tracker)
    run_id = tracker.close()
    recorded = Recorded(tmp_path)
    metrics = recorded.parent.data.metrics
    assert metrics["accuracy"] == pytest.approx(search.readout) and "perplexity" not in metrics
    assert metrics["dense_accuracy"] == pytest.approx(search.dense_readout)
    assert recorded.steps("path_accuracy") == [1, 2, 3]
    assert set(recorded.children[0].data.metrics) == {"loss", "delta", "accuracy"}
    assert recorded.parent.data.tags["raysearch.unit"] == "errors per item"
    csv = tmp_path / "artifacts" / run_id / "artifacts" / "trials.csv"
    assert csv.read_text().startswith("index,round,removed,n_removed,loss,accuracy,delta,")


def test_a_failed_trial_keeps_its_cause_and_no_metric_is_infinite(tmp_path):
    tracker = open_tracker(tmp_path)
    tracker.search_started(greedy_search())
    tracker.trial(Trial(0, 1, Mask.of(0), None, None, "out of memory", cached=False))
    tracker.trial(Trial(1, 1, Mask.of(1), float("inf"), float("inf"), None, cached=False))
    tracker.trial(Trial(2, 1, Mask.of(2), 800.0, 797.2, None, cached=True))
    tracker.search_ended(None, "every replica died")
    tracker.close()
    recorded = Recorded(tmp_path)
    failed, infinite, huge = (recorded.children[index] for index in range(3))
    assert (failed.info.status, failed.data.tags["raysearch.failure"]) == ("FAILED", "out of memory")
    assert failed.data.metrics == {} == infinite.data.metrics
    assert infinite.data.tags["raysearch.not_finite"] == "delta,loss,perplexity"
    assert set(huge.data.metrics) == {"loss", "delta"}
    assert recorded.parent.info.status == "FAILED"
    assert recorded.parent.data.tags["raysearch.failure"] == "every replica died"


def test_odd_remarks_ruin_no_chart(tmp_path):
    search = greedy_search()
    odd: dict[str, float | str | list[float]] = {
        "gap": float("nan"),
        "by layer": [1.0, float("inf"), 3.0],
        "a@b": -1.0,
        "none": [],
        "why": "x" * 10_000,
    }
    tracker = open_tracker(tmp_path)
    repeat(replace(search, remarks=odd), tracker)
    tracker.close()
    recorded = Recorded(tmp_path)
    assert recorded.steps("remark.by layer") == [0, 2]
    assert recorded.parent.data.metrics["remark.a_b"] == -1 and "remark.gap" not in recorded.parent.data.metrics
    assert recorded.parent.data.tags["raysearch.not_finite"] == "remark.by layer,remark.gap"
    assert recorded.parent.data.tags["raysearch.remark.why"].endswith("x…")


@pytest.mark.parametrize(("failure", "status"), [(None, "KILLED"), ("no replica left", "FAILED")])
def test_a_resumed_search_fills_in_what_is_missing(tmp_path, failure, status):
    search = greedy_search()
    first = open_tracker(tmp_path)
    repeat(search, first, rounds=2)
    first.trial(replace(search.by_round[2][0][0], loss=None, delta=None, failure="a replica died"))
    first.search_ended(None, failure)
    run_id = first.close()
    before = Recorded(tmp_path)
    assert before.parent.info.status == status

    second = open_tracker(tmp_path)
    repeat(search, second, rounds=2)
    second.close()
    reopened = Recorded(tmp_path)
    assert reopened.parent.info.status == "RUNNING"
    assert "raysearch.failure" not in reopened.parent.data.tags

    third = open_tracker(tmp_path)
    repeat(search, third)
    assert third.close() == run_id
    check_complete(tmp_path)
    after = Recorded(tmp_path)
    assert after.parent.data.metrics["seconds"] == 5.0 + 7.5, "the seconds of both processes"
    for index, child in before.children.items():
        assert after.children[index].info.run_id == child.info.run_id
        if child.info.status == "FINISHED":
            assert after.children[index].info.end_time == child.info.end_time, "what is there is left alone"


def test_a_finished_search_told_again_changes_nothing(tmp_path):
    search = greedy_search()
    for _ in range(2):
        tracker = open_tracker(tmp_path)
        repeat(search, tracker)
        tracker.close()
    check_complete(tmp_path)
    assert len(Recorded(tmp_path).steps("loss")) == 1
    interrupted = open_tracker(tmp_path)
    repeat(search, interrupted, rounds=1)
    interrupted.search_ended(None)
    interrupted.close()
    check_complete(tmp_path)


def test_a_search_that_its_budget_stopped_is_not_finished(tmp_path):
    whole = greedy_search()
    best = whole.path[1]
    assert best.loss is not None
    forwards = replace(whole.layer_forwards, alone=9.0)
    stopped = replace(whole, removed=best.mask.layers, loss=best.loss, layer_forwards=forwards, complete=False)
    for result, rounds in [(stopped, 1), (stopped, 1), (whole, 3), (whole, 3)]:
        tracker = open_tracker(tmp_path)
        repeat(replace(result, rounds=whole.rounds[:rounds]), tracker)
        tracker.close()
        parent = Recorded(tmp_path).parent
        assert parent.info.status == "FINISHED" and parent.data.metrics["loss"] == result.loss
        assert parent.data.tags["raysearch.complete"] == str(result.complete).lower()
        assert parent.data.params.get("removed") == (str(result.mask) if result.complete else None)
    check_complete(tmp_path)
    assert len(Recorded(tmp_path).steps("loss")) == 2, "nothing is written twice"


def check_complete(folder: Path) -> None:
    search = greedy_search()
    recorded = Recorded(folder)
    assert recorded.parent.info.status == "FINISHED"
    assert sorted(recorded.children) == [trial.index for trial in search.trials]
    for trial in search.trials:
        child = recorded.children[trial.index]
        assert child.info.status == "FINISHED"
        assert "raysearch.failure" not in child.data.tags
        history = recorded.client.get_metric_history(child.info.run_id, "loss")
        assert [point.value for point in history] == [pytest.approx(trial.loss)]
    for metric in ("round_best_loss", "evaluations_computed"):
        assert recorded.steps(metric) == [1, 2, 3]
    assert recorded.steps("best_loss") == [search.evaluations.requested]


def test_kill_9_loses_nothing_that_a_resume_does_not_fill_in(tmp_path):
    # The process ends between a child's creation and its metrics, where it hurts most.
    script = """
import os
from pathlib import Path
from mlflow import MlflowClient
from raysearch.search.observer import repeat
from raysearch.testing.tracker_suite import greedy_search
from raysearch.tracking.mlflow.tracker import MlflowTracker

log_batch, calls = MlflowClient.log_batch, []

def dies(self, *args, **kwargs):
    calls.append(args)
    if len(calls) == 12:
        os._exit(9)
    return log_batch(self, *args, **kwargs)

MlflowClient.log_batch = dies
tracker = MlflowTracker(None, "tests", Path.cwd(), print)
repeat(greedy_search(), tracker)
tracker.close()
"""
    assert start_python(script, tmp_path, subprocess.DEVNULL).wait(100) == 9
    left = Recorded(tmp_path)
    assert left.parent.info.status == "RUNNING"
    assert 0 < len(left.children) < len(greedy_search().trials)
    assert sum(child.info.status == "RUNNING" for child in left.children.values()) == 1
    tracker = open_tracker(tmp_path)
    repeat(greedy_search(), tracker)
    assert tracker.close() == left.parent.info.run_id
    check_complete(tmp_path)


def test_searches_of_a_study_start_together_on_an_empty_folder_in_silence(tmp_path):
    script = """
import sys
from pathlib import Path
from raysearch.search.observer import repeat
from raysearch.testing.tracker_suite import greedy_search
from raysearch.tracking.mlflow.tracker import MlflowTracker

tracker = MlflowTracker(None, "tests", Path.cwd(), print)
repeat(greedy_search(4, 1, search_id=sys.argv[1]), tracker)
tracker.close()
"""
    folder = tmp_path / "new"
    folder.mkdir()
    one, other = (start_python(script, folder, subprocess.PIPE, name) for name in "ab")
    with one, other:
        assert [process.communicate(timeout=100)[0] for process in (one, other)] == ["", ""]


def test_an_mlflow_that_never_answers_is_given_up(tmp_path):
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        warnings: list[str] = []
        uri = f"http://127.0.0.1:{mute.getsockname()[1]}"
        tracker = MlflowTracker(uri, "tests", tmp_path, warnings.append, timeout_s=1.0)
        repeat(greedy_search(), tracker)
        begun = time.monotonic()
        assert tracker.close() is None
        assert time.monotonic() - begun < 5
        [sentence] = warnings
        assert (
            uri in sentence
            and "the search goes on" in sentence
            and sentence.endswith("raysearch sync greedy-m3-00000000 --store " + str(tmp_path))
        )


def test_a_store_that_comes_back_gets_all_of_it_while_the_search_goes_on(tmp_path, store_with_tables):
    taken = tmp_path / "taken"
    taken.write_text("a file where the folder should be")
    warnings: list[str] = []
    tracker = MlflowTracker(None, "tests", taken, warnings.append, retry_s=0.1)
    search = greedy_search()
    repeat(search, tracker, rounds=2)
    deadline = time.monotonic() + 30
    while not warnings and time.monotonic() < deadline:
        time.sleep(0.05)
    taken.unlink()
    taken.mkdir()
    shutil.copy(store_with_tables, taken / "mlflow.db")
    while tracker.run_id is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert tracker.run_id is not None, "before the search has ended"
    for trial in search.by_round[2][0]:
        tracker.trial(trial)
    tracker.round_done(search.rounds[2])
    tracker.search_ended(search)
    assert tracker.close() == tracker.run_id
    assert len(warnings) == 1
    check_complete(taken)


def test_a_folder_that_cannot_be_written_is_said_once(tmp_path):
    (tmp_path / "taken").write_text("a file where the folder should be")
    warnings: list[str] = []
    tracker = MlflowTracker(None, "tests", tmp_path / "taken", warnings.append, ledger=tmp_path / "my.db")
    repeat(greedy_search(), tracker)
    assert tracker.close() is None
    [sentence] = warnings
    assert sentence.endswith(f" --store {tmp_path}/taken --ledger {tmp_path}/my.db")


def test_a_server_holds_the_runs_and_their_files(tmp_path, served: Served, capfd):
    search = greedy_search()
    folder = tmp_path / "new"
    half = open_tracker(folder, uri=served.url, experiment="remote")
    repeat(search, half, rounds=1)
    half.close()
    tracker = open_tracker(folder, uri=served.url, experiment="remote")
    repeat(search, tracker)
    run_id = tracker.close()
    assert capfd.readouterr() == ("", "")
    recorded = Recorded(folder, served.url, "remote")
    assert recorded.parent.info.run_id == run_id
    assert sorted(recorded.children) == [trial.index for trial in search.trials]
    assert recorded.artifacts() == ARTIFACTS
    assert not folder.exists(), "a server keeps its own files"


def test_a_round_without_any_loss_is_recorded(tmp_path):
    tracker = open_tracker(tmp_path)
    tracker.search_started(greedy_search())
    tracker.round_done(RoundSummary(1, 3, 3, None, None, 8.0, 24.0, 1.5, 0.5))
    tracker.close()
    metrics = Recorded(tmp_path).parent.data.metrics
    assert metrics["layer_forwards_saved"] == 16 and "round_best_loss" not in metrics
