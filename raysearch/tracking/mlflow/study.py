"""Writes to MLflow what is no part of one search: the run of a study, its report, and what masks were assessed at."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from mlflow.entities import Metric, Param, Run, RunTag

from raysearch.search.observer import LossPoint, Text
from raysearch.tracking.mlflow import records
from raysearch.tracking.mlflow.client import client_of, connect, only_one
from raysearch.tracking.mlflow.datasets import text_input
from raysearch.tracking.mlflow.views import study_condition, study_note, view_tags
from raysearch.tracking.store import Store


def begin_study(store: Store, experiment: str, study_id: str, config: Mapping[str, Any], reopen: bool = True) -> str:
    """Make the study's run, or go on with the one that is there.

    Args:
        store: Where runs are kept.
        experiment: MLflow's name for a group of runs.
        study_id: The study's name.
        config: Its resolved configuration.
        reopen: Whether a run that has ended goes on.

    Returns:
        MLflow's id of the run.
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
        params = records.flatten({"study": config["study"]})
        client.log_batch(run_id, params=[Param(key, value) for key, value in params.items()])
        for key, value in view_tags(study_condition(run_id), study_id).items():
            client.set_experiment_tag(experiment_id, key, value)
        client.set_tag(run_id, "mlflow.note.content", study_note(study_id, run_id, experiment_id))
    return run_id


def adopt(store: Store, parent: str, searches: Mapping[str, Mapping[str, str]]) -> None:
    """File searches under a study; they were recorded before it.

    Args:
        store: Where runs are kept.
        parent: MLflow's id of the study's run.
        searches: What each is called in the study, by axis, by MLflow's id of its run.
    """
    client = client_of(store)
    for run_id, labels in searches.items():
        known = client.get_run(run_id).data.params  # params are write-once: what another study calls it stays
        params = [Param(*item) for item in records.study_params(labels).items() if item[0] not in known]
        tags = [RunTag(*item) for item in records.study_tags(labels, parent).items()]
        client.log_batch(run_id, params=params, tags=tags)
        client.update_run(run_id, name=records.search_name(run_id, labels))


def end_study(store: Store, run_id: str, metrics: Mapping[str, float], files: Sequence[Path]) -> None:
    """Put numbers and files on the study's run, and end it.

    Args:
        store: Where runs are kept.
        run_id: MLflow's id of the run.
        metrics: Numbers by name; those that are not finite are left out, and those that it has.
        files: What to keep with the run: files, and folders as a whole.
    """
    record_assessments(store, {run_id: metrics})
    client = client_of(store)
    for file in files:
        client.log_artifact(run_id, str(file))  # a folder goes there as a whole
    if client.get_run(run_id).info.status != "FINISHED":
        client.set_terminated(run_id, "FINISHED")


def stop_study(store: Store, run_id: str, search_ids: Collection[str]) -> None:
    """End the study's run as killed, and those of searches that nobody runs any more and that have not ended.

    Args:
        store: Where runs are kept.
        run_id: MLflow's id of the study's run.
        search_ids: Those searches.
    """
    client = client_of(store)
    for run in open_runs(store, run_id):
        if run.data.tags.get("raysearch.search_id") in search_ids:
            client.set_terminated(run.info.run_id, "KILLED")
    client.set_terminated(run_id, "KILLED")


def open_runs(store: Store, parent: str) -> Sequence[Run]:
    """Return the runs of a study's searches that have not ended.

    Args:
        store: Where runs are kept.
        parent: MLflow's id of the study's run.
    """
    client = client_of(store)
    experiment = client.get_run(parent).info.experiment_id
    wanted = f"tags.`mlflow.parentRunId` = '{parent}' and attributes.status = 'RUNNING'"
    found: Sequence[Run] = client.search_runs([experiment], wanted, max_results=1000)
    return found


def record_recovery(
    store: Store, search_run: str, name: str, points: Sequence[LossPoint], numbers: Mapping[str, float]
) -> None:
    """Log the losses of a recovery, by tokens, and its numbers, on a run of its own under the search's.

    Args:
        store: Where the runs are kept.
        search_run: MLflow's id of the search's run.
        name: The recovery's.
        points: The losses; nothing is logged of them if the run is there.
        numbers: What it cost, and what the model was assessed at, by name; those that the run has are left out.
    """
    client = client_of(store)
    experiment = client.get_run(search_run).info.experiment_id
    tags = {"raysearch.recovery": name, "raysearch.kind": "recovery", "mlflow.parentRunId": search_run}
    run = only_one(client, client.search_runs([experiment], f"tags.`raysearch.recovery` = '{name}'"))
    if run is None or run.info.status != "FINISHED":
        run = run or client.create_run(experiment, tags=tags, run_name=name)
        now, found = time.time_ns() // 1_000_000, list[Metric]()
        for point in points:
            values = {
                "recovery/loss": point.loss,
                "recovery/held_out_loss": point.held_out,
                "recovery/step": point.step,
            }
            found += [Metric(key, value, now, point.tokens) for key, value in values.items() if value is not None]
        for start in range(0, len(found), records.MAX_POINTS):
            client.log_batch(run.info.run_id, found[start : start + records.MAX_POINTS])
        client.set_terminated(run.info.run_id)
    record_assessments(store, {run.info.run_id: numbers})


def record_assessments(store: Store, metrics: Mapping[str, Mapping[str, float]]) -> None:
    """Log the metrics that runs do not have yet, without numbers that are not finite.

    Args:
        store: Where the runs are kept.
        metrics: By MLflow's id of a run, by name: ``assess/hellaswag/pruned``, ``assess/hellaswag/pruned_se`` …
    """
    now = time.time_ns() // 1_000_000
    client = client_of(store)
    for run_id, values in metrics.items():
        known = client.get_run(run_id).data.metrics
        named = {re.sub(r"[^\w./ -]", "_", name): value for name, value in values.items()}
        new = {name: value for name, value in named.items() if math.isfinite(value) and known.get(name) != value}
        client.log_batch(run_id, [Metric(name, value, now, 0) for name, value in new.items()])


def record_texts(store: Store, texts: Mapping[str, Mapping[str, Text]]) -> None:
    """Note on runs what texts their masks were assessed on; a text that a run has is not noted again.

    Args:
        store: Where the runs are kept.
        texts: By MLflow's id of a run, by name.
    """
    client = client_of(store)
    for run_id, by_name in texts.items():
        inputs = client.get_run(run_id).inputs
        known = {one.dataset.digest for one in inputs.dataset_inputs} if inputs else set()
        new = [text_input(name, text) for name, text in by_name.items() if text.fingerprint not in known]
        if new:
            client.log_inputs(run_id, new)


def record_answers(store: Store, answers: Mapping[str, Mapping[str, str]]) -> None:
    """Keep answers with runs, as ``answers/<task>.jsonl``.

    Args:
        store: Where the runs are kept.
        answers: By MLflow's id of a run, by task.
    """
    client = client_of(store)
    for run_id, by_task in answers.items():
        for task, text in by_task.items():
            client.log_text(run_id, text, f"answers/{task}.jsonl")
