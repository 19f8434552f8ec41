"""Writes to MLflow what is found of a search's masks after it: by assessments and recoveries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from raysearch.searching.observer import LossPoint, RecoveryHeader
from raysearch.tracking.mlflow import records
from raysearch.tracking.mlflow.client import client_of, log, only_one
from raysearch.tracking.options import Store


def record_recovery(
    store: Store, search_run: str, header: RecoveryHeader, points: Sequence[LossPoint], numbers: Mapping[str, float]
) -> None:
    """Log the losses of a recovery, by tokens, once, and its numbers, on a run of its own under the search's.

    That of a dense model stands beside the search: under its study, if it has one.
    """
    client = client_of(store)
    search, name = client.get_run(search_run), header.recovery_id
    experiment, wanted = search.info.experiment_id, f"tags.`raysearch.recovery` = '{name}'"
    parent = search_run if header.mask else search.data.tags.get("mlflow.parentRunId")
    tags = records.recovery_tags(header, parent)
    run = only_one(client, client.search_runs([experiment], wanted))
    run = run or client.create_run(experiment, tags=tags)
    params = records.recovery_params(header).items()
    log(client, run.info.run_id, params={key: of for key, of in params if key not in run.data.params}, tags=tags)
    if run.info.status != "FINISHED":
        found = [
            (f"recovery/{name}", value, point.tokens)
            for point in points
            for name, value in (("loss", point.loss), ("held_out_loss", point.held_out), ("step", point.step))
            if value is not None
        ]
        log(client, run.info.run_id, found)
        client.set_terminated(run.info.run_id)
    record_assessments(store, {run.info.run_id: numbers})


def record_assessments(store: Store, metrics: Mapping[str, Mapping[str, float]]) -> None:
    """Log the metrics that runs do not have yet, without numbers that are not finite: by a run's id, by name."""
    client = client_of(store)
    for run_id, values in metrics.items():
        known = client.get_run(run_id).data.metrics
        named = {records.key_of(name): value for name, value in values.items()}
        log(client, run_id, [(name, value, 0) for name, value in named.items() if known.get(name) != value])


def record_answers(store: Store, answers: Mapping[str, Mapping[str, str]]) -> None:
    """Keep answers, by a run's id and by task, as ``answers/<task>.jsonl``."""
    client = client_of(store)
    for run_id, by_task in answers.items():
        for task, text in by_task.items():
            client.log_text(run_id, text, f"answers/{task}.jsonl")
