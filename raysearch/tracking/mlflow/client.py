"""Reaches an MLflow store: in silence, in limited time, and with its tables and experiment made where they lack."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from raysearch.core.paths import written_whole
from raysearch.errors import redact
from raysearch.tracking.mlflow.records import clip
from raysearch.tracking.mlflow.views import view_tags
from raysearch.tracking.options import Store

if TYPE_CHECKING:  # heavy; it is imported after `quiet`
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Run

# Read by MLflow at its import; a value the user has set wins. Retries bridge a server's restart of some ten seconds,
# where MLflow's own defaults would hold up the end of a search for many minutes.
_ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",  # what fails is said in a sentence of ours
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "PGCONNECT_TIMEOUT": "10",
}
_TIMEOUT_S = 60.0
_PAGE = 1000  # runs that are asked for at once

# What MLflow's pages open with: runs and charts, where they would otherwise guess at language model traces.
_KIND = {"mlflow.experimentKind": "custom_model_development"}

_T = TypeVar("_T")


def connect(store: Store, experiment: str) -> tuple[MlflowClient, str]:
    """Return a client, and the id of the experiment of that name, which is made if there is none."""
    store.check()
    with store.alone():
        database = store.folder / "mlflow.db"
        if store.is_embedded and not database.exists():
            with written_whole(database) as unfinished:  # MLflow can do nothing with half of its tables
                client_of(replace(store, uri=f"sqlite:///{unfinished}")).search_experiments()
        client = client_of(store)
        return client, _experiment_id(client, store, experiment)


def client_of(store: Store) -> MlflowClient:
    """Return a client of a store that is there."""
    from mlflow import MlflowClient

    store.check()
    return MlflowClient(store.uri)


def now_ms() -> int:
    """Return the time in milliseconds since the epoch, as MLflow counts."""
    return time.time_ns() // 1_000_000


def log(
    client: MlflowClient,
    run_id: str,
    points: Iterable[tuple[str, float, int]] = (),
    at: int | None = None,
    params: Mapping[str, str] | None = None,
    tags: Mapping[str, str] | None = None,
) -> None:
    """Write to a run at once: metrics by name, value and step, but for values that are not finite; params and tags.

    The metrics are of the time `at`, in milliseconds since the epoch; None for now.
    """
    from mlflow.entities import Metric, Param, RunTag

    at = now_ms() if at is None else at
    client.log_batch(
        run_id,
        [Metric(name, float(value), at, step) for name, value, step in points if math.isfinite(value)],
        [Param(*param) for param in (params or {}).items()],
        [RunTag(*tag) for tag in (tags or {}).items()],
    )


def keep_views(client: MlflowClient, experiment: Experiment, runs: Iterable[Run] = ()) -> None:
    """Give an experiment the views of its searches, made for these runs, that it lacks or has otherwise."""
    for key, value in view_tags(runs=runs).items() - experiment.tags.items():
        client.set_experiment_tag(experiment.experiment_id, key, value)


def search_all(client: MlflowClient, experiment: str, condition: str) -> Iterator[Run]:
    """Yield the runs of an experiment that meet a condition, however many."""
    token = None
    while True:
        page = client.search_runs([experiment], condition, max_results=_PAGE, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def only_one(client: MlflowClient, runs: Iterable[Run]) -> Run | None:
    """Return the run that was written to, of all that were made for the same thing, and delete the others.

    A server that is slow to answer is asked again, and makes a run each time. Only one of them gets params.
    """
    made = sorted(runs, key=lambda run: (not run.data.params, run.info.start_time, run.info.run_id))
    for run in made[1:]:
        if not run.data.params:
            client.delete_run(run.info.run_id)
    return next(iter(made), None)


def attempt(work: Callable[[], _T], timeout_s: float = _TIMEOUT_S) -> _T:
    """Do some work with MLflow on a thread of its own, since a database that hangs cannot be interrupted.

    Raises:
        TimeoutError: It has not come to its end; it is left behind.
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
    """Return an error as part of one sentence."""
    return clip(" ".join(redact(f"{type(error).__name__}: {error}").split()), 200)


def quiet() -> None:
    """Keep what MLflow and its HTTP client would print off the user's screen; called before MLflow is imported."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)  # else it warns of every retry


def _experiment_id(client: MlflowClient, store: Store, name: str) -> str:
    from mlflow.exceptions import MlflowException

    if found := client.get_experiment_by_name(name):
        if not view_tags().keys() <= found.tags.keys():  # made by hand
            keep_views(client, found)
        return str(found.experiment_id)
    artifacts = None if store.is_server else store.artifacts.as_uri()
    try:
        return str(client.create_experiment(name, artifacts, tags=_KIND | view_tags()))
    except MlflowException:
        # Searches of a study start together: another may have made it between the look and the leap.
        if found := client.get_experiment_by_name(name):
            return str(found.experiment_id)
        raise
