"""A study in MLflow: the parent run of its searches."""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from mlflow import MlflowClient

from raysearch.core.mask import Mask
from raysearch.ledger.ledger import Ledger, opened
from raysearch.ledger.locks import locked
from raysearch.searching.events import (
    LossPoint,
    MaskRecovered,
    MasksAssessed,
    RecoveryHeader,
    StudyHeader,
    StudyReported,
    StudyStarted,
    StudyStopped,
)
from raysearch.searching.observer import repeat
from raysearch.searching.search_record import SearchRecord, write_search
from raysearch.studies.study_record import CellRecord, StudyRecord
from raysearch.tracking.mlflow.client import attempt
from raysearch.tracking.mlflow.study import open_runs
from raysearch.tracking.mlflow.tracker import open_tracker
from raysearch.tracking.options import TrackingOptions
from raysearch.tracking.sync import SyncedStudy, complete_killed_searches, sync_study
from tests.tracking.simulated import greedy_search

EMPTY_STUDY = StudyHeader("x", {"study": {}}, [])
LABELS = {"model": "tiny", "searcher": "beam, width=5", "remove": "2"}


@pytest.fixture
def options(tmp_path: Path, tables: None) -> TrackingOptions:
    return TrackingOptions("mlflow", None, "tests", tmp_path)


def fail(message: str) -> None:
    raise AssertionError(message)


def begin(options: TrackingOptions, header: StudyHeader, warn: Callable[[str], None] = fail) -> str:
    """Begin a study, and return MLflow's id of it; empty if there is none."""
    tracker = open_tracker(options, warn)
    tracker.on_event(StudyStarted(header))
    return tracker.close() or ""


def open_searches(client: MlflowClient, parent: str) -> dict[str, str]:
    """Create the runs of two running searches of a study; return the ids of the runs by those of the searches."""
    experiment = client.get_run(parent).info.experiment_id
    tags = {
        name: {"mlflow.parentRunId": parent, "raysearch.search_id": name, "raysearch.kind": "search"}
        for name in ("greedy", "beam")
    }
    return {name: client.create_run(experiment, tags=search_tags).info.run_id for name, search_tags in tags.items()}


def test_searches_that_were_recorded_before_become_children_of_the_study(options: TrackingOptions) -> None:
    tracker = open_tracker(options, fail)
    repeat(greedy_search(search_id="before"), tracker)
    before = tracker.close()
    assert before is not None
    config = {"study": {"name": "my-study", "grid": {"remove": [5]}}}
    header = StudyHeader("my-study-1", config, ["beam"], [0], {before: LABELS})
    parent = begin(options, header)
    assert begin(options, header) == parent, "a repetition changes nothing"
    client = MlflowClient(options.store.uri)
    run = client.get_run(before)
    assert run.data.tags["mlflow.parentRunId"] == parent
    assert run.info.run_name == "beam, width=5, M=2, tiny"
    note = client.get_run(parent).data.tags["mlflow.note.content"]
    assert f"mlflow.parentRunId%60%20%3D%20%27{parent}%27" in note
    assert "compareRunsMode=CHART" in note
    assert run.data.tags["raysearch.study.searcher"] == run.data.params["study.searcher"] == "beam, width=5"
    assert begin(options, StudyHeader("my-study-1", {"study": {}}, [])) == parent, "the same study has one run"
    assert client.get_run(parent).data.params["study.grid.remove"] == "[5]"


def test_a_recovery_has_its_settings_and_that_of_a_dense_model_belongs_to_the_study(options: TrackingOptions) -> None:
    tracker = open_tracker(options, fail)
    repeat(greedy_search(), tracker)
    run_id = tracker.close()
    assert run_id is not None
    parent = begin(options, StudyHeader("my-study-3", {"study": {}}, ["greedy"], [0], {run_id: LABELS}))
    search = SearchRecord("greedy-m3-00000000", {}, "finished", None, None, "", mlflow_run_id=run_id)
    for mask, expected_parent in (Mask.of(1, 2), run_id), (Mask(), parent):
        tracker = open_tracker(options, fail)
        name = f"recover-m{len(mask)}-1"
        for way in "", "distilled":  # by a separate command, and then by a study
            header = RecoveryHeader(name, mask, way, {"choices.data": "sotu", "recovery.loss": "distill"}, len(mask))
            tracker.on_event(MaskRecovered(search, header, [LossPoint(1, 100, 3.0, 2.5)], {"recovery/rows": 20}))
        client = MlflowClient(options.store.uri)
        experiment = client.get_run(parent).info.experiment_id
        (run,) = client.search_runs([experiment], f"tags.`raysearch.recovery` = '{name}'")
        assert run.data.tags["mlflow.parentRunId"] == expected_parent
        assert run.info.status == "FINISHED"
        assert run.info.run_name == f"distilled, {name}"
        assert run.data.params["removed"] == str(mask)
        assert (
            run.data.params.items() >= {"way": "distilled", "recovery.loss": "distill", "choices.data": "sotu"}.items()
        )


def test_the_report_and_numbers_are_written_to_the_run(options: TrackingOptions, tmp_path: Path) -> None:
    parent = begin(options, StudyHeader("my-study-2", {"study": {"name": "x"}}, []))
    (tmp_path / "report/figures").mkdir(parents=True)
    (tmp_path / "report/report.html").write_text("<!DOCTYPE html>")
    (tmp_path / "report/figures/map.svg").write_text("<svg/>")
    files = [tmp_path / "report/report.html", tmp_path / "report/figures"]
    client = MlflowClient(options.store.uri)
    open_tracker(options, fail).on_event(StudyReported(parent, {"searches/done": 1.0}, files, False))
    assert client.get_run(parent).info.status == "RUNNING", "a report may be written before the study ends"
    numbers = {"layer_forwards_shared": 12.0, "nothing": float("nan")}
    open_tracker(options, fail).on_event(StudyReported(parent, numbers, files, True))
    run = client.get_run(parent)
    assert (run.info.status, run.data.metrics["layer_forwards_shared"]) == ("FINISHED", 12.0)
    assert "nothing" not in run.data.metrics
    assert {file.path for file in client.list_artifacts(parent)} == {"report.html", "figures"}
    link = options.link(parent)
    assert link is not None
    assert link.endswith(str(parent))
    assert options.link(parent, "http://team-host:5000/") == f"http://team-host:5000/#/runs/{parent}"


def test_a_store_that_cannot_be_written_warns_once_and_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file where a folder should be")
    options = TrackingOptions("mlflow", None, "tests", tmp_path / "taken")
    warnings: list[str] = []
    assert not begin(options, EMPTY_STUDY, warnings.append)
    assert len(warnings) == 1
    assert "the study continues" in warnings[0]


def test_a_study_does_not_wait_for_a_server_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raysearch.tracking.mlflow.tracker.attempt", partial(attempt, timeout_s=1.0))
    warnings: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections, and answers nothing
        options = TrackingOptions("mlflow", f"http://127.0.0.1:{silent.getsockname()[1]}", "tests", tmp_path)
        assert not begin(options, EMPTY_STUDY, warnings.append)
        open_tracker(options, warnings.append).on_event(StudyReported("abc", {}, [], True))
    assert len(warnings) == 2
    assert all("(TimeoutError: no answer in 1 s); " in sentence for sentence in warnings)


def test_nothing_is_recorded_without_a_tracker(tmp_path: Path) -> None:
    options = TrackingOptions("none", None, "tests", tmp_path / "none")
    assert not begin(options, EMPTY_STUDY)
    tracker = open_tracker(options, fail)
    tracker.on_event(StudyReported(None, {}, [], True))
    tracker.on_event(MasksAssessed([]))
    assert options.link(None) is None
    assert not (tmp_path / "none").exists()


def test_a_stopped_study_is_killed_with_its_running_searches(options: TrackingOptions) -> None:
    header = StudyHeader("my-study-3", {"study": {}}, ["greedy", "beam"])
    parent = begin(options, header)
    client = MlflowClient(options.store.uri)
    runs = open_searches(client, parent)
    open_tracker(options, fail).on_event(StudyStopped(parent, ["greedy"]))
    states = [client.get_run(run_id).info.status for run_id in (parent, runs["greedy"], runs["beam"])]
    assert states == ["KILLED", "KILLED", "RUNNING"], "another process runs beam"
    assert begin(options, header) == parent
    assert client.get_run(parent).info.status == "RUNNING"


def test_more_running_searches_than_a_page_of_mlflow_are_found(
    options: TrackingOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raysearch.tracking.mlflow.client._PAGE", 1)
    parent = begin(options, StudyHeader("my-study-6", {"study": {}}, ["greedy", "beam"]))
    runs = open_searches(MlflowClient(options.store.uri), parent)
    assert {run.info.run_id for run in open_runs(options.store, parent)} == set(runs.values())


def test_a_search_whose_process_died_is_marked_as_failed(options: TrackingOptions, tmp_path: Path) -> None:
    parent = begin(options, StudyHeader("my-study-4", {"study": {}}, ["greedy", "beam"]))
    client = MlflowClient(options.store.uri)
    runs = open_searches(client, parent)
    cells = tuple(CellRecord("m", "c", name, 2, 0, name) for name in runs)
    with closing(Ledger(tmp_path / "ledger.db")) as ledger:
        for name in runs:
            write_search(ledger, name, {}, "failed", failure="its process died")
        with locked(ledger, "beam", "SEARCH"):
            complete_killed_searches(StudyRecord("my-study-4", {}, cells, {}, {}, "", parent), ledger, options, fail)
    after = {name: client.get_run(run_id) for name, run_id in runs.items()}
    assert after["greedy"].info.status == "FAILED"
    assert after["greedy"].data.tags["raysearch.failure"] == "its process died"
    assert after["beam"].info.status == "RUNNING", "another process runs it"


@pytest.mark.usefixtures("blank_figures")
def test_two_threads_that_sync_a_study_at_once_write_each_trial_once(options: TrackingOptions, tmp_path: Path) -> None:
    search = greedy_search(search_id="greedy")
    model = {"name": "m", "path": "m"}
    config = {"study": {"name": "x"}, "tracking": {}, "model": model, "searcher": {}, "remove": search.n_remove}
    cell = CellRecord("m", "c", "greedy", 2, 0, "greedy", held_out=3.5)
    study = StudyRecord("my-study-5", config, (cell,), {}, {}, "")
    parent = begin(options, StudyHeader("my-study-5", config, []))
    with closing(Ledger(tmp_path / "ledger.db")) as ledger:
        write_search(ledger, "greedy", config, "finished", search)

    def write() -> SyncedStudy:
        with opened(tmp_path / "ledger.db") as ledger:
            return sync_study(study, ledger, options)

    with ThreadPoolExecutor() as threads:
        futures = [threads.submit(write) for _ in range(2)]
    assert sum(synced.missing for future in futures for synced in future.result().searches) == len(search.trials)
    client = MlflowClient(options.store.uri)
    runs = client.search_runs([client.get_run(parent).info.experiment_id], max_results=1000)
    assert len(runs) == 2 + len(search.path), "the study, its search and the best mask of each number of layers"
    (run_id,) = [run.info.run_id for run in runs if run.data.tags["raysearch.kind"] == "search"]
    losses = client.get_metric_history(run_id, "trial/loss")
    assert sorted(point.step for point in losses) == list(range(len(search.trials)))
    assert [run.data.metrics["loss/held_out"] for run in runs if "loss/held_out" in run.data.metrics] == [3.5]
