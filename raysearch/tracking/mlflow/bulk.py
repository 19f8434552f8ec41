"""Makes the runs of many trials at once.

Through MLflow's client, each run takes five transactions of the database, and each transaction waits for the disk. So
the rows of many runs are written in one transaction, as in MLflow's ``migrate-filestore``. A server has no such call;
several threads send requests to it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlflow import MlflowClient
from mlflow.entities import LifecycleStage, SourceType
from mlflow.store.tracking.dbmodels.models import SqlLatestMetric, SqlMetric, SqlParam, SqlRun, SqlTag
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from mlflow.utils.uri import append_to_uri_path

from raysearch.tracking.mlflow.client import log

if TYPE_CHECKING:
    from sqlalchemy.orm import DeclarativeBase

_THREADS = 8  # that send requests to a server


@dataclass(frozen=True)
class Child:
    """The run of a trial that has ended.

    Args:
        name: The name of the run.
        began: Its start, in milliseconds since the epoch.
        ended: Its end, in milliseconds since the epoch.
        status: ``FINISHED`` or ``FAILED``.
        tags: Its tags.
        params: Its params.
        metrics: Its metrics, finite; they have step 0 and the time of the run's end.
    """

    name: str
    began: int
    ended: int
    status: str
    tags: Mapping[str, str]
    params: Mapping[str, str]
    metrics: Mapping[str, float]


def make_children(
    client: MlflowClient, experiment: str, children: Sequence[Child], on_progress: Callable[[], None] = lambda: None
) -> None:
    """Make the runs of trials. In a database, either all of them are made or none.

    Args:
        client: A client of the store.
        experiment: The id of the experiment.
        children: The runs.
        on_progress: It is called after each run that a server has made.
    """
    store = client._tracking_client.store
    if isinstance(store, SqlAlchemyStore):
        artifacts = store.get_experiment(experiment).artifact_location
        with store.ManagedSessionMaker(read_only=False) as session:
            for child in children:
                session.add_all(_rows(child, experiment, artifacts))
        return

    def make(child: Child) -> None:
        run_id = client.create_run(experiment, child.began, dict(child.tags), child.name).info.run_id
        complete(client, run_id, child)

    with ThreadPoolExecutor(_THREADS) as threads:
        for _ in threads.map(make, children):
            on_progress()


def _rows(child: Child, experiment: str, artifacts: str) -> list[DeclarativeBase]:
    """Return the rows of a run, as MLflow writes them."""
    run = uuid.uuid4().hex
    tags = {**child.tags, "mlflow.runName": child.name}
    metrics = [
        {"run_uuid": run, "key": key, "value": value, "timestamp": child.ended, "step": 0, "is_nan": False}
        for key, value in child.metrics.items()
    ]
    return [
        SqlRun(
            run_uuid=run,
            name=child.name,
            experiment_id=int(experiment),
            artifact_uri=append_to_uri_path(artifacts, run, SqlAlchemyStore.ARTIFACTS_FOLDER_NAME),
            source_type=SourceType.to_string(SourceType.UNKNOWN),
            source_name="",
            entry_point_name="",
            source_version="",
            user_id="unknown",
            status=child.status,
            start_time=child.began,
            end_time=child.ended,
            lifecycle_stage=LifecycleStage.ACTIVE,
        ),
        *(SqlTag(run_uuid=run, key=key, value=value) for key, value in tags.items()),
        *(SqlParam(run_uuid=run, key=key, value=value) for key, value in child.params.items()),
        *(SqlMetric(**metric) for metric in metrics),
        *(SqlLatestMetric(**metric) for metric in metrics),
    ]


def complete(client: MlflowClient, run_id: str, child: Child, has_metrics: bool = False) -> None:
    """Write the metrics and params of a run, and then its status.

    Args:
        client: A client of the store.
        run_id: The id of the run.
        child: The trial's run as it should be.
        has_metrics: Whether the run has its metrics already.
    """
    points = [] if has_metrics else [(name, value, 0) for name, value in child.metrics.items()]
    log(client, run_id, points, child.ended, child.params)
    client.set_terminated(run_id, child.status, child.ended)
