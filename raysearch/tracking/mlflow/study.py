"""Writes the run of a study to MLflow, and its report."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysearch.tracking.mlflow import run_fields
from raysearch.tracking.mlflow.assessments import record_assessments
from raysearch.tracking.mlflow.client import client_of, connect, log, only_one, search_all
from raysearch.tracking.mlflow.views import objectives_of, study_condition, study_note, view_tags
from raysearch.tracking.options import MlflowStore

if TYPE_CHECKING:  # heavy; it is imported after `quiet`
    from mlflow import MlflowClient
    from mlflow.entities import Run


def begin_study(
    store: MlflowStore, experiment: str, study_id: str, config: Mapping[str, Any], reopen: bool = True
) -> str:
    """Create the study's run, or open the existing one, and return its id.

    Args:
        store: The store of MLflow.
        experiment: The name of the experiment.
        study_id: The id of the study.
        config: The study's configuration.
        reopen: Whether an existing run is set to RUNNING.

    Returns:
        MLflow's id of the run.
    """
    client, experiment_id = connect(store, experiment)
    condition = f"tags.`raysearch.study` = '{study_id}' and tags.`raysearch.kind` = 'study'"
    run = only_one(client, client.search_runs([experiment_id], condition))
    if run is None:
        tags = {"raysearch.study": study_id, "raysearch.kind": "study"}
        run = client.create_run(experiment_id, tags=tags, run_name=study_id)
    elif reopen:
        client.update_run(run.info.run_id, status="RUNNING")
    run_id = str(run.info.run_id)
    if "mlflow.note.content" not in run.data.tags:  # it is written last, so the run is not complete
        log(client, run_id, params=run_fields.flatten({"study": config["study"]}))
        _describe(client, run)
    return run_id


def adopt(store: MlflowStore, parent: str, searches: Mapping[str, Mapping[str, str]]) -> None:
    """Make the runs of searches that were recorded earlier child runs of a study.

    Args:
        store: The store of MLflow.
        parent: The id of the study's run.
        searches: The labels of the searches in the study, by the ids of their runs.
    """
    client = client_of(store)
    for run_id, labels in searches.items():
        data = client.get_run(run_id).data
        if data.tags.get("mlflow.parentRunId") == parent:
            continue
        # MLflow's params cannot be changed, so the labels of an earlier study stay.
        params = {key: value for key, value in run_fields.study_params(labels).items() if key not in data.params}
        log(client, run_id, params=params, tags=run_fields.study_tags(labels, parent))
        client.update_run(run_id, name=run_fields.search_name(run_id, labels))


def record_report(
    store: MlflowStore, run_id: str, metrics: Mapping[str, float], files: Sequence[Path], ended: bool
) -> None:
    """Write the numbers and the report of a study to its run, and end the run if the study has ended.

    Args:
        store: The store of MLflow.
        run_id: The id of the study's run.
        metrics: The numbers of the study, by name.
        files: The files and folders of the report.
        ended: Whether the study has ended.
    """
    record_assessments(store, {run_id: metrics})
    client = client_of(store)
    _describe(client, client.get_run(run_id))
    for file in files:
        client.log_artifact(run_id, str(file))
    if ended and client.get_run(run_id).info.status == "RUNNING":  # a run that was stopped meanwhile stays KILLED
        client.set_terminated(run_id, "FINISHED")


def _describe(client: MlflowClient, study: Run) -> None:
    """Write the views of a study's current searches, and the description of the study with links to the views."""
    run_id = study.info.run_id
    experiment_id = study.info.experiment_id
    study_id = study.data.tags["raysearch.study"]
    condition = study_condition(run_id)
    searches = list(search_all(client, experiment_id, condition))
    for key, value in view_tags(condition, study_id, searches).items():
        client.set_experiment_tag(experiment_id, key, value)
    note = study_note(study_id, run_id, experiment_id, objectives_of(searches))
    client.set_tag(run_id, "mlflow.note.content", note)


def end_failed(store: MlflowStore, run_id: str, failure: str) -> None:
    """End the run of a search whose process died.

    Args:
        store: The store of MLflow.
        run_id: The id of the search's run.
        failure: The cause of the failure.
    """
    client = client_of(store)
    client.set_tag(run_id, "raysearch.failure", run_fields.clip(failure, run_fields.MAX_TAG))
    client.set_terminated(run_id, "FAILED")


def stop_study(store: MlflowStore, run_id: str, search_ids: Collection[str]) -> None:
    """End the run of a study, and those of its searches, as KILLED.

    Args:
        store: The store of MLflow.
        run_id: The id of the study's run.
        search_ids: The ids of the searches that no process runs; runs that have ended stay as they are.
    """
    client = client_of(store)
    for run in open_runs(store, run_id):
        if run.data.tags.get("raysearch.search_id") in search_ids:
            client.set_terminated(run.info.run_id, "KILLED")
    client.set_terminated(run_id, "KILLED")


def open_runs(store: MlflowStore, parent: str) -> Sequence[Run]:
    """Return the runs of a study's searches that have not ended.

    Args:
        store: The store of MLflow.
        parent: The id of the study's run.

    Returns:
        The runs.
    """
    client = client_of(store)
    experiment = client.get_run(parent).info.experiment_id
    return list(search_all(client, experiment, f"{study_condition(parent)} and attributes.status = 'RUNNING'"))
