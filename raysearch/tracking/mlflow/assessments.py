"""Writes the assessments, answers and recoveries of a search's masks to MLflow."""

from __future__ import annotations

from collections.abc import Mapping

from raysearch.searching.events import MaskRecovered
from raysearch.tracking.mlflow import run_fields
from raysearch.tracking.mlflow.client import Point, client_of, log, only_one
from raysearch.tracking.options import MlflowStore


def record_recovery(store: MlflowStore, search_run: str, event: MaskRecovered) -> None:
    """Write a recovery to a separate run, a child of the search's run.

    The run of a dense model's recovery is a child of the study's run instead, if there is a study.

    Args:
        store: The store of MLflow.
        search_run: The id of the search's run.
        event: The recovery. The losses of its training are written once, with the number of tokens as their step.
    """
    header = event.header
    client = client_of(store)
    search = client.get_run(search_run)
    experiment = search.info.experiment_id
    parent = search_run if header.mask else search.data.tags.get("mlflow.parentRunId")
    tags = run_fields.recovery_tags(header, parent)
    run = only_one(client, client.search_runs([experiment], f"tags.`raysearch.recovery` = '{header.recovery_id}'"))
    run = run or client.create_run(experiment, tags=tags)
    params = run_fields.recovery_params(header)
    missing_params = {key: value for key, value in params.items() if key not in run.data.params}
    log(client, run.info.run_id, params=missing_params, tags=tags)
    if run.info.status != "FINISHED":
        metrics = [
            Point(f"recovery/{name}", value, point.tokens)
            for point in event.points
            for name, value in (("loss", point.loss), ("held_out_loss", point.held_out), ("step", point.step))
            if value is not None
        ]
        log(client, run.info.run_id, metrics)
        client.set_terminated(run.info.run_id)
    record_assessments(store, {run.info.run_id: event.numbers})


def record_assessments(store: MlflowStore, metrics: Mapping[str, Mapping[str, float]]) -> None:
    """Log the metrics that runs do not have yet; values that are not finite are left out.

    Args:
        store: The store of MLflow.
        metrics: The values, by the id of a run, then by name.
    """
    client = client_of(store)
    for run_id, values in metrics.items():
        recorded = client.get_run(run_id).data.metrics
        by_key = {run_fields.key_of(name): value for name, value in values.items()}
        log(client, run_id, [Point(key, value, 0) for key, value in by_key.items() if recorded.get(key) != value])


def record_answers(store: MlflowStore, answers: Mapping[str, Mapping[str, str]]) -> None:
    """Write answers as the artifacts ``answers/<task>.jsonl``.

    Args:
        store: The store of MLflow.
        answers: The text of each file, by the id of a run, then by task.
    """
    client = client_of(store)
    for run_id, by_task in answers.items():
        for task, text in by_task.items():
            client.log_text(run_id, text, f"answers/{task}.jsonl")
