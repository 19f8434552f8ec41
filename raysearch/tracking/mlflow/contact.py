"""How MLflow is spoken to: in silence, and never longer than it may take."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

from raysearch.errors import redact
from raysearch.tracking.mlflow.records import brief

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

_T = TypeVar("_T")


def attempt(work: Callable[[], _T], timeout_s: float = _TIMEOUT_S) -> _T:
    """Does some work with MLflow on a thread of its own, since a database that hangs cannot be interrupted.

    Args:
        work: What to do.
        timeout_s: How long to wait for its end.

    Returns:
        What it returned.

    Raises:
        TimeoutError: It has not come to its end; it is left behind.
        Exception: Whatever it raised.
    """
    done: Future[_T] = Future()

    def run() -> None:
        try:
            with quiet():
                done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="mlflow", daemon=True).start()
    try:
        return done.result(timeout_s)
    except TimeoutError as error:
        raise TimeoutError(str(error) or f"no answer in {timeout_s:g} s") from error


def cause_of(error: BaseException) -> str:
    """What went wrong, as part of one sentence."""
    return brief(redact(f"{type(error).__name__}: {error}"))


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps what MLflow and its HTTP client would print off the user's screen; other threads keep their logs."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    thread = threading.get_ident()
    http_logger = logging.getLogger("urllib3.connectionpool")  # warns of every retry

    def from_elsewhere(record: logging.LogRecord) -> bool:
        return record.thread != thread

    http_logger.addFilter(from_elsewhere)
    try:
        yield
    finally:
        http_logger.removeFilter(from_elsewhere)
