"""Makes the runs of many trials at once.

One by one, a run is five transactions in a database, each of which waits for the disk. So they are rows of one, as in
MLflow's own ``migrate-filestore``. A server has no such call: it is asked by several threads.
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

_THREADS = 8  # that ask a server


@dataclass(frozen=True)
class Child:
    """A run that has ended, ``FINISHED`` or ``FAILED``; times are in milliseconds since the epoch.

    Its metrics are finite; they are of step 0 and of the run's end.
    """

    name: str
    began: int
    ended: int
    status: str
    tags: Mapping[str, str]
    params: Mapping[str, str]
    metrics: Mapping[str, float]


def make_children(
    client: MlflowClient, experiment: str, children: Sequence[Child], wrote: Callable[[], None] = lambda: None
) -> None:
    """Make runs in an experiment, by its id: in a database all or none; at a server each, and then call `wrote`."""
    store = client._tracking_client.store
    if isinstance(store, SqlAlchemyStore):
        artifacts = store.get_experiment(experiment).artifact_location
        with store.ManagedSessionMaker(read_only=False) as session:
            for child in children:
                session.add_all(_rows(child, experiment, artifacts))
        return

    def ask(child: Child) -> None:
        made = client.create_run(experiment, child.began, dict(child.tags), child.name).info.run_id
        complete(client, made, child)

    with ThreadPoolExecutor(_THREADS) as threads:
        for _ in threads.map(ask, children):
            wrote()


def _rows(child: Child, experiment: str, artifacts: str) -> list[DeclarativeBase]:
    """Return the rows of a run, as MLflow writes them."""
    run, tags = uuid.uuid4().hex, {**child.tags, "mlflow.runName": child.name}
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
    """Write what a run lacks, its status last."""
    points = [] if has_metrics else [(name, value, 0) for name, value in child.metrics.items()]
    log(client, run_id, points, child.ended, child.params)
    client.set_terminated(run_id, child.status, child.ended)
