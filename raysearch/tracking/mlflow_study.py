"""Writes a study to MLflow: the run that its searches are filed under, and at its end the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from raysearch.tracking import records
from raysearch.tracking.mlflow_tracker import quiet
from raysearch.tracking.store import Store


def begin_study(
    store: Store, experiment: str, study_id: str, config: Mapping[str, Any], warn: Callable[[str], None]
) -> str | None:
    """Makes the study's run, or takes up the one that is there.

    Args:
        store: Where runs are kept.
        experiment: MLflow's name for a group of runs.
        study_id: The study's name.
        config: Its resolved configuration.
        warn: Told, in one sentence, if MLflow cannot be written to.

    Returns:
        MLflow's id of the run; None if it cannot be written to.
    """
    run_id = None
    with _at_most_warning(store, warn):
        from mlflow.entities import Param

        from raysearch.tracking.mlflow_store import connect

        client, experiment_id = connect(store, experiment)
        wanted = f"tags.`raysearch.study` = '{study_id}' and tags.`raysearch.kind` = 'study'"
        run = next(iter(client.search_runs([experiment_id], wanted, max_results=1)), None)
        if run is None:
            tags = {"raysearch.study": study_id, "raysearch.kind": "study"}
            run = client.create_run(experiment_id, tags=tags, run_name=study_id)
            params = records.flatten({"study": config["study"]})
            client.log_batch(run.info.run_id, params=[Param(key, value) for key, value in params.items()])
            note = records.study_note(study_id, run.info.run_id, experiment_id)
            client.set_tag(run.info.run_id, "mlflow.note.content", note)
        else:
            client.update_run(run.info.run_id, status="RUNNING")
        run_id = str(run.info.run_id)
    return run_id


def adopt(store: Store, parent: str, searches: Mapping[str, Mapping[str, str]], warn: Callable[[str], None]) -> None:
    """Files searches under a study that had been recorded before it.

    Args:
        store: Where runs are kept.
        parent: MLflow's id of the study's run.
        searches: What each is called in the study, by axis, by MLflow's id of its run.
        warn: Told, in one sentence, if MLflow cannot be written to.
    """
    with _at_most_warning(store, warn):
        from mlflow import MlflowClient
        from mlflow.entities import Param, RunTag

        client = MlflowClient(store.uri)
        for run_id, labels in searches.items():
            known = client.get_run(run_id).data.params  # params are write-once: what another study calls it stays
            params = [Param(*item) for item in records.study_params(labels).items() if item[0] not in known]
            tags = [RunTag(*item) for item in records.study_tags(labels, parent).items()]
            client.log_batch(run_id, params=params, tags=tags)
            client.update_run(run_id, name=records.search_name(run_id, labels))


def end_study(
    store: Store,
    run_id: str,
    metrics: Mapping[str, float],
    files: Sequence[Path],
    warn: Callable[[str], None],
) -> None:
    """Puts numbers and files on the study's run, and ends it.

    Args:
        store: Where runs are kept.
        run_id: MLflow's id of the run.
        metrics: Numbers by name; those that are not finite are left out.
        files: What to keep with the run: files, and folders as a whole.
        warn: Told, in one sentence, if MLflow cannot be written to.
    """
    with _at_most_warning(store, warn):
        import math

        from mlflow import MlflowClient

        client = MlflowClient(store.uri)
        for name, value in metrics.items():
            if math.isfinite(value):
                client.log_metric(run_id, name, value)
        for file in files:
            client.log_artifact(run_id, str(file))  # a folder goes there as a whole
        client.set_terminated(run_id, "FINISHED")


@contextmanager
def _at_most_warning(store: Store, warn: Callable[[str], None]) -> Iterator[None]:
    try:
        with quiet():
            yield
    except Exception as error:  # a tracker never stops a study, whatever MLflow, a disk or a network throws
        cause = records.brief(f"{type(error).__name__}: {error}")
        warn(f"the study cannot be recorded in MLflow at {store.uri} ({cause}); it goes on without")
