"""Connects to an MLflow store: without output, with a time limit, and with missing tables and experiments created."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from raysearch.core.paths import atomic_file
from raysearch.text.redaction import redact
from raysearch.tracking.mlflow.run_fields import clip
from raysearch.tracking.mlflow.views import view_tags
from raysearch.tracking.options import MlflowStore

if TYPE_CHECKING:  # heavy; it is imported after `quiet`
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Run

# MLflow reads these at its import. A value that the user has set is kept. The retries are enough for a server's restart
# of about ten seconds; MLflow's defaults would delay the end of a search by many minutes.
_ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",  # failures are reported by a warning of the tracker
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "PGCONNECT_TIMEOUT": "10",
}
_TIMEOUT_S = 60.0
_PAGE = 1000  # runs of a request

# MLflow's pages then show runs and charts first; otherwise they may show the traces of language models.
_KIND = {"mlflow.experimentKind": "custom_model_development"}

_T = TypeVar("_T")


def connect(store: MlflowStore, experiment: str) -> tuple[MlflowClient, str]:
    """Return a client, and the id of an experiment; a missing store or experiment is created.

    Args:
        store: The store of MLflow.
        experiment: The name of the experiment.

    Returns:
        The client, and the id of the experiment.
    """
    with store.locked():
        database = store.folder / "mlflow.db"
        if store.is_embedded and not database.exists():
            with atomic_file(database) as unfinished:  # MLflow fails if only some of its tables exist
                client_of(replace(store, uri=f"sqlite:///{unfinished}")).search_experiments()
        client = client_of(store)
        return client, _experiment_id(client, store, experiment)


def client_of(store: MlflowStore) -> MlflowClient:
    """Return a client of a store that exists."""
    from mlflow import MlflowClient

    return MlflowClient(store.uri)


def in_ms(seconds: float) -> int:
    """Return a time in seconds since the epoch in milliseconds, MLflow's unit."""
    return int(1000 * seconds)


@dataclass(frozen=True)
class Point:
    """The value of a metric at a step.

    Args:
        name: The name of the metric.
        value: Its value.
        step: Its step.
        at_ms: Its time, in milliseconds since the epoch; None for now.
    """

    name: str
    value: float
    step: int
    at_ms: int | None = None


def log(
    client: MlflowClient,
    run_id: str,
    points: Iterable[Point] = (),
    params: Mapping[str, str] | None = None,
    tags: Mapping[str, str] | None = None,
) -> None:
    """Write metrics, params and tags to a run, in one request per 1,000 of them.

    Args:
        client: A client of the store.
        run_id: The id of the run.
        points: The metrics; values that are not finite are left out.
        params: The params.
        tags: The tags.
    """
    from mlflow.entities import Metric, Param, RunTag

    now_ms = in_ms(time.time())
    client.log_batch(
        run_id,
        [
            Metric(point.name, float(point.value), now_ms if point.at_ms is None else point.at_ms, point.step)
            for point in points
            if math.isfinite(point.value)
        ],
        [Param(*param) for param in (params or {}).items()],
        [RunTag(*tag) for tag in (tags or {}).items()],
    )


def keep_views(client: MlflowClient, experiment: Experiment, runs: Iterable[Run] = ()) -> None:
    """Write the views of an experiment's searches that are missing or differ.

    Args:
        client: A client of the store.
        experiment: The experiment.
        runs: The runs of the searches for which the views are made.
    """
    for key, value in view_tags(runs=runs).items() - experiment.tags.items():
        client.set_experiment_tag(experiment.experiment_id, key, value)


def search_all(client: MlflowClient, experiment: str, condition: str) -> Iterator[Run]:
    """Yield all runs of an experiment that meet a condition.

    Args:
        client: A client of the store.
        experiment: The id of the experiment.
        condition: A filter in MLflow's syntax.

    Yields:
        A run, read page by page.
    """
    token = None
    while True:
        page = client.search_runs([experiment], condition, max_results=_PAGE, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def only_one(client: MlflowClient, runs: Iterable[Run]) -> Run | None:
    """Return the one run that has data, of several runs for the same search or trial, and delete empty duplicates.

    A request to a slow server is sent again, and the server then makes a run each time. Only one of them gets params.

    Args:
        client: A client of the store.
        runs: The runs for the same search or trial.

    Returns:
        The run; None if there is none.
    """
    duplicates = sorted(runs, key=lambda run: (not run.data.params, run.info.start_time, run.info.run_id))
    for run in duplicates[1:]:
        if not run.data.params:
            client.delete_run(run.info.run_id)
    return next(iter(duplicates), None)


def attempt(work: Callable[[], _T], timeout_s: float = _TIMEOUT_S) -> _T:
    """Call a function that uses MLflow on a separate thread, since a database that hangs cannot be interrupted.

    Args:
        work: The function.
        timeout_s: How long to wait for it.

    Returns:
        The result of the function; its errors are raised.

    Raises:
        TimeoutError: The function has not returned in time; its thread continues in the background.
    """
    done: Future[_T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    quiet()
    threading.Thread(target=run, name="mlflow", daemon=True).start()
    try:
        return done.result(timeout_s)
    except TimeoutError as error:
        raise TimeoutError(str(error) or f"no answer in {timeout_s:g} s") from error


def cause_of(error: BaseException) -> str:
    """Return an error as text for use inside a sentence, without secrets."""
    return clip(" ".join(redact(f"{type(error).__name__}: {error}").split()), 200)


def quiet() -> None:
    """Silence the output of MLflow and its HTTP client. Call it before MLflow is imported."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)  # by default it warns of every retry


def _experiment_id(client: MlflowClient, store: MlflowStore, name: str) -> str:
    from mlflow.exceptions import MlflowException

    if experiment := client.get_experiment_by_name(name):
        if not view_tags().keys() <= experiment.tags.keys():  # the user created it
            keep_views(client, experiment)
        return str(experiment.experiment_id)
    artifacts = None if store.is_server else store.artifacts.as_uri()
    try:
        return str(client.create_experiment(name, artifacts, tags=_KIND | view_tags()))
    except MlflowException:
        # Searches of a study start together, so another one may have created the experiment in the meantime.
        if experiment := client.get_experiment_by_name(name):
            return str(experiment.experiment_id)
        raise
