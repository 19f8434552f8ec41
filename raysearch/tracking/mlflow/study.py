"""Writes the run of a study to MLflow, and its report."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysearch.tracking.mlflow import records
from raysearch.tracking.mlflow.assessments import record_assessments
from raysearch.tracking.mlflow.client import client_of, connect, log, only_one, search_all
from raysearch.tracking.mlflow.views import objectives_of, study_condition, study_note, view_tags
from raysearch.tracking.options import Store

if TYPE_CHECKING:  # heavy; it is imported after `quiet`
    from mlflow import MlflowClient
    from mlflow.entities import Run


def begin_study(store: Store, experiment: str, study_id: str, config: Mapping[str, Any], reopen: bool = True) -> str:
    """Make the study's run, or go on with the one that is there, and return its id.

    A run that has ended is set running again if it is to `reopen`.
    """
    client, experiment_id = connect(store, experiment)
    wanted = f"tags.`raysearch.study` = '{study_id}' and tags.`raysearch.kind` = 'study'"
    run = only_one(client, client.search_runs([experiment_id], wanted))
    if run is None:
        tags = {"raysearch.study": study_id, "raysearch.kind": "study"}
        run = client.create_run(experiment_id, tags=tags, run_name=study_id)
    elif reopen:
        client.update_run(run.info.run_id, status="RUNNING")
    run_id = str(run.info.run_id)
    if "mlflow.note.content" not in run.data.tags:  # the last that is written
        log(client, run_id, params=records.flatten({"study": config["study"]}))
        _describe(client, run)
    return run_id


def adopt(store: Store, parent: str, searches: Mapping[str, Mapping[str, str]]) -> None:
    """File searches that were recorded before a study under its run, by their runs' ids with their labels there."""
    client = client_of(store)
    for run_id, labels in searches.items():
        data = client.get_run(run_id).data
        if data.tags.get("mlflow.parentRunId") == parent:
            continue
        # params are write-once: what another study calls it stays
        params = {key: value for key, value in records.study_params(labels).items() if key not in data.params}
        log(client, run_id, params=params, tags=records.study_tags(labels, parent))
        client.update_run(run_id, name=records.search_name(run_id, labels))


def record_report(store: Store, run_id: str, metrics: Mapping[str, float], files: Sequence[Path], ended: bool) -> None:
    """Put numbers, as of `record_assessments`, and files and folders on the study's run, and end it if it has ended."""
    record_assessments(store, {run_id: metrics})
    client = client_of(store)
    _describe(client, client.get_run(run_id))
    for file in files:
        client.log_artifact(run_id, str(file))
    if ended and client.get_run(run_id).info.status == "RUNNING":  # not one that was stopped meanwhile
        client.set_terminated(run_id, "FINISHED")


def _describe(client: MlflowClient, study: Run) -> None:
    """Write the views of a study's searches, and the description with links to them, by what is there now."""
    run_id, experiment_id, study_id = study.info.run_id, study.info.experiment_id, study.data.tags["raysearch.study"]
    condition = study_condition(run_id)
    searches = list(search_all(client, experiment_id, condition))
    for key, value in view_tags(condition, study_id, searches).items():
        client.set_experiment_tag(experiment_id, key, value)
    note = study_note(study_id, run_id, experiment_id, objectives_of(searches))
    client.set_tag(run_id, "mlflow.note.content", note)


def end_failed(store: Store, run_id: str, failure: str) -> None:
    """End the run of a search whose process died before it could, with the cause."""
    client = client_of(store)
    client.set_tag(run_id, "raysearch.failure", records.clip(failure, records.MAX_TAG))
    client.set_terminated(run_id, "FAILED")


def stop_study(store: Store, run_id: str, search_ids: Collection[str]) -> None:
    """End the study's run as killed, and those of searches that nobody runs any more and that have not ended."""
    client = client_of(store)
    for run in open_runs(store, run_id):
        if run.data.tags.get("raysearch.search_id") in search_ids:
            client.set_terminated(run.info.run_id, "KILLED")
    client.set_terminated(run_id, "KILLED")


def open_runs(store: Store, parent: str) -> Sequence[Run]:
    """Return the runs of a study's searches that have not ended, by the id of its run."""
    client = client_of(store)
    experiment = client.get_run(parent).info.experiment_id
    wanted = f"{study_condition(parent)} and attributes.status = 'RUNNING'"
    found: Sequence[Run] = client.search_runs([experiment], wanted, max_results=1000)
    return found
