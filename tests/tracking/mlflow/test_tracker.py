import json
import shutil
import socket
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raysearch.core.mask import Mask
from raysearch.core.trial import Trial
from raysearch.searching.events import RoundEnded, SearchEnded, SearchStarted, TrialScored
from raysearch.searching.observer import Tracker, repeat
from raysearch.searching.result import SearchResult
from raysearch.tracking.mlflow.publisher import SearchPublisher
from raysearch.tracking.mlflow.tracker import MlflowTracker
from raysearch.tracking.options import TrackingOptions
from raysearch.tracking.state import SearchState
from tests.tracking.conftest import closed_port, start_python
from tests.tracking.recorded import ARTIFACTS, Recorded
from tests.tracking.simulated import greedy_search
from tests.tracking.tracker_suite import TrackerSuite

pytestmark = pytest.mark.usefixtures("tables")

SEARCH = greedy_search(n_layers=5)
#: Records that search at a URI, once for each id, each in a separate process; the arguments are the URI and the ids.
RECORD_SCRIPT = """
import os
import sys
from pathlib import Path
from raysearch.figures.search import Plots
from raysearch.searching.observer import repeat
from raysearch.tracking.mlflow.tracker import MlflowTracker
from raysearch.tracking.options import TrackingOptions
from tests.tracking.simulated import greedy_search

Plots.files = lambda _: ()  # drawing takes seconds
uri, search_id, *child_ids = sys.argv[1:]
for child_id in child_ids:
    if os.fork() == 0:
        search_id = child_id
        break
options = TrackingOptions("mlflow", uri or None, "raysearch", Path.cwd(), child_runs="all")
tracker = MlflowTracker(options, print, timeout_s=300)
repeat(greedy_search(n_layers=5, search_id=search_id), tracker)
tracker.close()
"""


class TestTracker(TrackerSuite):
    def make_tracker(self, folder, warn):
        return Tracker()


@pytest.mark.usefixtures("blank_figures")
class TestMlflowTracker(TrackerSuite):
    def make_tracker(self, folder, warn):
        return MlflowTracker(place(folder), warn)

    def make_unreachable(self, folder, warn):
        return MlflowTracker(place(folder, f"http://127.0.0.1:{closed_port()}"), warn)


def place(folder: Path, uri: str | None = None, experiment: str = "raysearch", **options: Any) -> TrackingOptions:
    return TrackingOptions("mlflow", uri, experiment, folder, **options)


def patient(options: TrackingOptions) -> MlflowTracker:
    """A tracker that waits long for a slow machine; the test fails if it warns."""
    return MlflowTracker(options, pytest.fail, timeout_s=300)


def record_search(folder: Path, search: SearchResult = SEARCH, rounds: int | None = None, **options: Any) -> str:
    """Record a search, or its first rounds, and return the id of its MLflow run."""
    tracker = patient(place(folder, **options))
    repeat(search, tracker, rounds)
    run_id = tracker.close()
    assert run_id is not None
    return run_id


def from_ledger(search: SearchResult) -> SearchResult:
    """The same search repeated, with all its losses from the ledger."""
    return replace(search, trials=tuple(replace(trial, cached=True) for trial in search.trials))


def record_again(tracker: MlflowTracker, search: SearchResult, run_id: str, receipt: str) -> str | None:
    """Record a search that was recorded before, and return its receipt."""
    tracker.resume(run_id, receipt)
    repeat(search, tracker)
    assert tracker.close() == run_id
    return tracker.receipt


def test_a_search_that_is_written_completely_is_not_written_again(tmp_path):
    first = patient(place(tmp_path))
    repeat(SEARCH, first)
    run_id = first.close()
    receipt = first.receipt
    assert run_id is not None
    assert receipt is not None
    cached = from_ledger(SEARCH)
    different = from_ledger(greedy_search(n_layers=5, n_remove=2))
    moved = tmp_path / "moved.db"
    (tmp_path / "mlflow.db").rename(moved)
    assert record_again(patient(place(tmp_path)), cached, run_id, receipt) not in (None, receipt), (
        "the database was missing"
    )
    assert Recorded(tmp_path).parent.info.status == "FINISHED"

    moved.replace(tmp_path / "mlflow.db")
    assert record_again(patient(place(tmp_path)), different, run_id, receipt) not in (None, receipt), "other masks"
    (tmp_path / "mlflow.db").write_bytes(b"no database: reading it fails")
    assert record_again(patient(place(tmp_path)), cached, run_id, receipt) == receipt
    warnings: list[str] = []
    assert record_again(MlflowTracker(place(tmp_path), warnings.append), SEARCH, run_id, receipt) is None
    assert "file is not a database" in warnings[0]


def test_a_search_is_written_completely(tmp_path):
    folder = tmp_path / "a folder"
    search = SEARCH
    run_id = record_search(folder)
    recorded = Recorded(folder)
    parent = recorded.parent
    params = {"searcher.width": "1", "versions.raysearch": "0.1.0", "n_remove": "3"}
    metrics = {"model/parameters_removed_share": 0.25, "cost/seconds": 7.5, "cost/searcher_seconds": 0.25}
    metrics |= {"remark/gap": 0.031, "loss/pruned": search.loss}
    tags = {"raysearch.removed": str(search.mask), "raysearch.remark.solver": "proven"}
    tags |= {"raysearch.unit": "nats per token"}
    assert (parent.info.run_id, parent.info.run_name, parent.info.status) == (run_id, search.search_id, "FINISHED")
    assert parent.data.params | params | {"removed": str(search.mask)} == parent.data.params
    assert {name: parent.data.metrics[name] for name in metrics} == pytest.approx(metrics)
    assert parent.data.tags | tags == parent.data.tags
    assert recorded.steps("progress/round_best_loss") == [1, 2, 3]
    assert recorded.steps("progress/best_loss") == [search.work.evaluations.requested]
    assert recorded.steps("progress/best_loss_by_second") == [7]
    assert recorded.steps("path/loss") == recorded.steps("path/perplexity") == [1, 2, 3]
    assert recorded.steps("remark/ablation") == list(range(5))
    assert recorded.artifacts() == ARTIFACTS
    files = folder / "artifacts" / run_id / "artifacts"
    assert (files / "trials.csv").is_file()
    assert json.loads((files / "data.json").read_text()) == search.data
    assert recorded.losses() == {trial.index: trial.loss for trial in search.trials}
    assert [row["mask"] for row in recorded.table()] == [str(trial.mask) for trial in search.trials]
    assert sorted(recorded.children) == [trial.index for trial in search.path], "the best mask of each size"
    trial = search.path[-1]
    child = recorded.children[trial.index]
    assert child.info.status == "FINISHED"
    assert child.data.params == {"removed": str(trial.mask), "n_removed": "3", "round": "3"}
    assert child.data.metrics["loss/delta"] == pytest.approx(trial.delta)
    assert parent.info.start_time <= child.info.start_time <= child.info.end_time <= parent.info.end_time


def test_a_failed_trial_keeps_its_cause_and_no_metric_is_infinite(tmp_path):
    tracker = patient(place(tmp_path, child_runs="all"))
    tracker.on_event(SearchStarted(SEARCH))
    tracker.on_event(TrialScored(Trial(0, 1, Mask.of(0), None, None, "out of memory", cached=False)))
    tracker.on_event(TrialScored(Trial(1, 1, Mask.of(1), float("inf"), float("inf"), None, cached=False)))
    tracker.on_event(TrialScored(Trial(2, 1, Mask.of(2), 800.0, 797.2, None, cached=True)))
    tracker.on_event(SearchEnded(None, "every replica died"))
    tracker.close()
    recorded = Recorded(tmp_path)
    failed, infinite, huge = (recorded.children[index] for index in range(3))
    assert (failed.info.status, failed.data.tags["raysearch.failure"]) == ("FAILED", "out of memory")
    assert failed.data.metrics == {} == infinite.data.metrics
    assert set(huge.data.metrics) == {"loss/pruned", "loss/delta"}
    assert recorded.losses() == {2: 800.0}
    assert [row["failure"] for row in recorded.table()] == ["out of memory", None, None]
    assert recorded.parent.info.status == "FAILED"
    assert recorded.parent.data.tags["raysearch.failure"] == "every replica died"


@pytest.mark.usefixtures("blank_figures")
def test_a_search_whose_budget_was_spent_too_early_is_stopped_and_can_be_resumed(tmp_path):
    first = patient(place(tmp_path))
    repeat(SEARCH, first, rounds=1)
    first.on_event(SearchEnded(None, "its budget was spent", stopped=True))
    first.close()
    run = Recorded(tmp_path).parent
    assert (run.info.status, run.data.tags["raysearch.complete"]) == ("FINISHED", "false")
    assert run.data.tags["raysearch.failure"] == "its budget was spent"
    record_search(tmp_path)
    run = Recorded(tmp_path).parent
    assert run.data.tags["raysearch.complete"] == "true"
    assert "raysearch.failure" not in run.data.tags


@pytest.mark.usefixtures("blank_figures")
def test_unusual_remarks_break_no_chart(tmp_path):
    odd: dict[str, float | str | list[float]] = {"gap": float("nan"), "by layer": [1.0, float("inf"), 3.0]}
    odd |= {"a@b": -1.0, "none": [], "why": "x" * 10_000}
    record_search(tmp_path, replace(SEARCH, remarks=odd))
    recorded = Recorded(tmp_path)
    assert recorded.steps("remark/by layer") == [0, 2]
    assert recorded.parent.data.metrics["remark/a_b"] == -1
    assert "remark/gap" not in recorded.parent.data.metrics
    assert recorded.parent.data.tags["raysearch.remark.why"].endswith("x…")


@pytest.mark.usefixtures("blank_figures")
@pytest.mark.parametrize(("failure", "status"), [(None, "KILLED"), ("no replica left", "FAILED")])
def test_a_resumed_search_writes_the_missing_parts(tmp_path, failure, status):
    first = patient(place(tmp_path, child_runs="all"))
    repeat(SEARCH, first, rounds=2)
    first.on_event(TrialScored(replace(SEARCH.by_round[2][0][0], loss=None, delta=None, failure="a replica died")))
    first.on_event(SearchEnded(None, failure))
    run_id = first.close()
    before = Recorded(tmp_path)
    assert before.parent.info.status == status

    record_search(tmp_path, rounds=2, child_runs="all")
    reopened = Recorded(tmp_path)
    assert reopened.parent.info.status == "RUNNING"
    assert "raysearch.failure" not in reopened.parent.data.tags

    assert record_search(tmp_path, child_runs="all") == run_id
    check_complete(tmp_path, child_runs="all")
    after = Recorded(tmp_path)
    assert after.parent.data.metrics["cost/seconds"] == 5.0 + 7.5, "the seconds of both processes"
    for index, child in before.children.items():
        assert after.children[index].info.run_id == child.info.run_id
        if child.info.status == "FINISHED":
            assert after.children[index].info.end_time == child.info.end_time, "complete runs do not change"


@pytest.mark.usefixtures("blank_figures")
def test_evaluations_of_a_killed_search_are_counted(tmp_path):
    record_search(tmp_path, rounds=2)
    second, third = SEARCH.rounds[1:3]
    rounds = [replace(summary, n_computed=0, layer_forwards_computed=0.0) for summary in SEARCH.rounds[:2]]
    last = replace(
        third,
        n_computed=third.n_computed - second.n_computed,
        layer_forwards_computed=third.layer_forwards_computed - second.layer_forwards_computed,
    )
    record_search(tmp_path, replace(SEARCH, rounds=(*rounds, last)))
    metrics = Recorded(tmp_path).parent.data.metrics
    assert metrics["evaluations/computed"] == third.n_computed
    assert metrics["evaluations/cached"] == third.n_cached
    assert metrics["layer_forwards/computed"] == third.layer_forwards_computed


@pytest.mark.usefixtures("blank_figures")
def test_repeating_a_finished_search_changes_nothing(tmp_path):
    for _ in range(2):
        record_search(tmp_path)
    check_complete(tmp_path)
    assert len(Recorded(tmp_path).steps("loss/pruned")) == 1
    interrupted = patient(place(tmp_path))
    repeat(SEARCH, interrupted, rounds=1)
    interrupted.on_event(SearchEnded(None))
    interrupted.close()
    check_complete(tmp_path)


@pytest.mark.usefixtures("blank_figures")
def test_a_search_that_its_budget_stopped_is_not_finished(tmp_path):
    best = SEARCH.path[1]
    assert best.loss is not None
    work = replace(SEARCH.work, layer_forwards=replace(SEARCH.work.layer_forwards, alone=9.0))
    stopped = replace(SEARCH, removed=best.mask.layers, loss=best.loss, work=work, complete=False)
    for result, rounds in [(stopped, 1), (stopped, 1), (SEARCH, 3), (SEARCH, 3)]:
        record_search(tmp_path, replace(result, rounds=SEARCH.rounds[:rounds]))
        parent = Recorded(tmp_path).parent
        assert parent.info.status == "FINISHED"
        assert parent.data.metrics["loss/pruned"] == result.loss
        assert parent.data.tags["raysearch.complete"] == str(result.complete).lower()
        assert parent.data.params.get("removed") == (str(result.mask) if result.complete else None)
    check_complete(tmp_path)
    assert len(Recorded(tmp_path).steps("loss/pruned")) == 2, "nothing is written twice"


def check_complete(folder: Path | str, child_runs: str = "best") -> None:
    recorded = Recorded(folder)
    recorded.assert_complete(len(SEARCH.trials))
    assert recorded.losses() == {trial.index: trial.loss for trial in SEARCH.trials}
    trials = SEARCH.path if child_runs == "best" else SEARCH.trials
    assert sorted(recorded.children) == [trial.index for trial in trials]
    for trial in trials:
        assert recorded.children[trial.index].data.metrics["loss/pruned"] == pytest.approx(trial.loss)
    for metric in ("progress/round_best_loss", "evaluations/computed"):
        assert recorded.steps(metric) == [1, 2, 3]
    assert recorded.steps("progress/best_loss") == [SEARCH.work.evaluations.requested]


@pytest.mark.usefixtures("blank_figures")
@pytest.mark.faults
@pytest.mark.parametrize("at_a_server", [False, True])
def test_a_resume_after_kill_9_writes_all_missing_parts(tmp_path, request, at_a_server):
    # The process ends between the creation of the sixth child run and its metrics.
    dying_script = """
import os
from mlflow import MlflowClient
from raysearch.tracking.mlflow import child_runs

log_batch = MlflowClient.log_batch
calls = []

def dies(*args, **kwargs):
    calls.append(args)
    if len(calls) == 9:
        os._exit(9)
    return log_batch(*args, **kwargs)

child_runs._THREADS = 1
MlflowClient.log_batch = dies
"""
    uri = request.getfixturevalue("served").url if at_a_server else None
    place = tmp_path if uri is None else uri
    assert (
        start_python(dying_script + RECORD_SCRIPT, tmp_path, subprocess.DEVNULL, uri or "", SEARCH.search_id).wait(100)
        == 9
    )
    killed = Recorded(place)
    assert killed.parent.info.status == "RUNNING"
    assert 0 < len(killed.children) < len(SEARCH.trials)
    assert [child.info.status for child in killed.children.values()].count("RUNNING") == 1
    assert record_search(tmp_path, uri=uri, child_runs="all") == killed.parent.info.run_id
    check_complete(place, child_runs="all")


@pytest.mark.usefixtures("blank_figures")
@pytest.mark.parametrize("child_runs", ["best", "all", "none"])
def test_publishing_twice_writes_nothing_twice(tmp_path, child_runs):
    options = place(tmp_path, child_runs=child_runs)
    state = SearchState.of(SEARCH)
    for n_rounds in (0, 1, 3):  # a search is killed twice, and then continues to its end
        SearchPublisher(options, until(state, n_rounds), None).publish(until(state, n_rounds))
    publisher = SearchPublisher(options, state, None)
    publisher.publish(state)
    assert publisher.count_missing(state.trials) == 0, "the third process has written all rounds"
    before = Recorded(tmp_path)
    publisher.publish(state)
    SearchPublisher(options, state, None).publish(state)
    after = Recorded(tmp_path)
    assert after.everything() == before.everything()
    assert [row["index"] for row in after.table()] == [trial.index for trial in SEARCH.trials]
    expected = {"best": SEARCH.path, "all": SEARCH.trials, "none": ()}[child_runs]
    assert sorted(after.children) == [trial.index for trial in expected]


def until(state: SearchState, n_rounds: int) -> SearchState:
    """The state of a search after some rounds, while it runs."""
    trials = tuple(trial for trial in state.trials if trial.round <= n_rounds) if n_rounds else ()
    rounds = state.rounds[:n_rounds]
    return replace(state, trials=trials, rounds=rounds, round_ends=state.round_ends[:n_rounds], end=None, ended=None)


@pytest.mark.usefixtures("blank_figures")
def test_child_runs_that_exist_stay_as_they_are(tmp_path):
    record_search(tmp_path, child_runs="all")
    before = Recorded(tmp_path).everything()
    for child_runs in ("best", "none"):
        record_search(tmp_path, child_runs=child_runs)
    assert Recorded(tmp_path).everything() == before


@pytest.mark.usefixtures("blank_figures")
def test_child_runs_can_be_added_to_a_finished_search(tmp_path):
    lines: list[str] = []
    record_search(tmp_path, child_runs="none")
    assert not Recorded(tmp_path).children
    tracker = MlflowTracker(place(tmp_path, child_runs="all"), pytest.fail, lines.append)
    repeat(SEARCH, tracker)
    tracker.close()
    check_complete(tmp_path, child_runs="all")
    assert lines
    assert all(line.startswith("recording in MLflow: ") for line in lines)


@pytest.mark.slow
def test_searches_of_a_study_start_together_in_an_empty_folder_without_output(tmp_path):
    folder = tmp_path / "new"
    folder.mkdir()
    with start_python(RECORD_SCRIPT, folder, subprocess.PIPE, "", "a", "b") as process:
        assert process.communicate(timeout=300)[0] == ""
    assert [Recorded(folder, search_id=name).parent.info.status for name in "ab"] == ["FINISHED"] * 2


def test_a_tracker_gives_up_if_mlflow_never_answers(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as mute:
        warnings: list[str] = []
        uri = f"http://127.0.0.1:{mute.getsockname()[1]}"
        ledger = tmp_path / "my.db"
        tracker = MlflowTracker(place(tmp_path, uri, ledger=ledger), warnings.append, timeout_s=1.0)
        repeat(SEARCH, tracker)
        assert tracker.close() is None
        [sentence] = warnings
        assert uri in sentence
        assert "the search continues" in sentence
        assert sentence.endswith(f"raysearch sync greedy-m3-00000000 --store {ledger}")


def test_a_tracker_waits_for_a_long_publication_while_something_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = MlflowTracker(place(tmp_path), pytest.fail, timeout_s=2.0)
    began = threading.Event()

    def publish_slowly(publisher: SearchPublisher, state: SearchState) -> None:
        began.set()
        for number in range(5):
            time.sleep(0.6)
            publisher._on_progress(f"part {number}")

    monkeypatch.setattr(SearchPublisher, "publish", publish_slowly)
    repeat(SEARCH, tracker, rounds=1)
    assert began.wait(60)
    assert tracker.close() == tracker.run_id


def test_a_slow_store_gets_the_latest_state_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published: list[int] = []
    is_first = threading.Event()
    may_continue = threading.Event()

    def publish(publisher: SearchPublisher, state: SearchState) -> None:
        published.append(len(state.rounds))
        is_first.set()
        assert may_continue.wait(60)

    monkeypatch.setattr(SearchPublisher, "publish", publish)
    tracker = patient(place(tmp_path))
    repeat(SEARCH, tracker, rounds=1)
    assert is_first.wait(60)
    for _, summary in SEARCH.by_round[1:]:
        tracker.on_event(RoundEnded(summary))
    may_continue.set()
    tracker.close()
    assert published == [1, 3]


@pytest.mark.usefixtures("blank_figures")
def test_a_store_that_can_be_written_again_gets_all_parts_while_the_search_runs(tmp_path, store_with_tables):
    blocked = tmp_path / "taken"
    blocked.write_text("a file where the folder should be")
    warnings: list[str] = []
    tracker = MlflowTracker(place(blocked), warnings.append, retry_s=0.1)
    repeat(SEARCH, tracker, rounds=2)
    deadline = time.monotonic() + 30
    while not warnings and time.monotonic() < deadline:
        time.sleep(0.05)
    blocked.unlink()
    blocked.mkdir()
    shutil.copy(store_with_tables, blocked / "mlflow.db")
    while tracker.run_id is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert tracker.run_id is not None, "before the search has ended"
    for trial in SEARCH.by_round[2][0]:
        tracker.on_event(TrialScored(trial))
    tracker.on_event(RoundEnded(SEARCH.rounds[2]))
    tracker.on_event(SearchEnded(SEARCH))
    assert tracker.close() == tracker.run_id
    assert len(warnings) == 1
    check_complete(blocked)


def test_nothing_is_written_before_the_first_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published: list[int] = []
    monkeypatch.setattr(SearchPublisher, "publish", lambda self, state: published.append(len(state.rounds)))
    tracker = patient(place(tmp_path))
    tracker.on_event(SearchStarted(SEARCH))
    time.sleep(0.2)
    assert not published
    tracker.on_event(RoundEnded(SEARCH.rounds[0]))
    tracker.close()
    assert published == [1]
