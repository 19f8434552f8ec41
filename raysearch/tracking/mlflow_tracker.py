"""Records searches in MLflow: ``tracking=mlflow``.

A write costs 10-50 ms and importing MLflow costs seconds, so none of it happens where the search runs:

    search thread    start  trial  trial  round_done …  close        each only puts an event on the queue
    tracker thread   import mlflow │ MlflowWriter writes them in order

If anything goes wrong on the tracker thread, it says so once and lets the rest pass. The ledger has everything, so the
same search run again tells the whole history, and the writer fills in what MLflow lacks.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

from raysearch.tracking.base import RoundSummary, SearchHeader, SearchResult, Trial
from raysearch.tracking.records import brief
from raysearch.tracking.store import Store

if TYPE_CHECKING:
    from raysearch.tracking.mlflow_writer import MlflowWriter

# Read by MLflow at its import; a value the user has set wins. Retries bridge a server's restart of some ten seconds,
# where MLflow's own defaults would hold up the end of a search for many minutes.
_ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}

Event = Callable[["MlflowWriter"], None]


class MlflowTracker:
    """Writes each search as a parent run and each of its trials as a child run. Tells one search, then is closed.

    Args:
        uri: MLflow's tracking URI; None for the embedded store, ``<folder>/mlflow.db``.
        experiment: MLflow's name for a group of searches.
        folder: Holds the embedded store, and the artifacts of any store that is not a server.
        warn: Told, in one sentence and at most once, if recording failed. It is called on the tracker's thread.
        patience_s: How long `close` waits while nothing gets written.
    """

    def __init__(
        self, uri: str | None, experiment: str, folder: Path, warn: Callable[[str], None], patience_s: float = 25.0
    ) -> None:
        self._store = Store.locate(uri, folder)
        self._experiment = experiment
        self._warn = warn
        self._patience_s = patience_s
        self._events: SimpleQueue[Event | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._gave_up = False
        self._written = 0
        self._run_id: str | None = None

    def start(self, header: SearchHeader) -> None:
        """See `Tracker`."""
        self._thread = threading.Thread(target=self._work, args=(header, _now()), name="mlflow-tracker", daemon=True)
        self._thread.start()

    def trial(self, trial: Trial) -> None:
        """See `Tracker`."""
        now = _now()
        self._put(lambda writer: writer.trial(trial, now))

    def round_done(self, summary: RoundSummary) -> None:
        """See `Tracker`."""
        now = _now()
        self._put(lambda writer: writer.round_done(summary, now))

    def finish(self, result: SearchResult | None, failure: str | None = None) -> None:
        """See `Tracker`."""
        now = _now()
        self._put(lambda writer: writer.finish(result, failure, now))

    def close(self) -> str | None:
        """Waits until everything is written, as long as something is; returns MLflow's id of the parent run."""
        self._events.put(None)
        written = -1
        while self._thread is not None and self._thread.is_alive() and written != self._written:
            written = self._written
            self._thread.join(self._patience_s)
        if self._thread is not None and self._thread.is_alive():
            self._give_up(f"nothing was written for {self._patience_s:g} s")
        return self._run_id

    def _put(self, event: Event) -> None:
        if not self._gave_up:
            self._events.put(event)

    def _work(self, header: SearchHeader, now: int) -> None:
        try:
            with quiet():
                from raysearch.tracking.mlflow_writer import MlflowWriter

                writer = MlflowWriter(self._store, self._experiment, header, now)
                self._run_id = writer.run_id
                while (event := self._events.get()) is not None and not self._gave_up:
                    event(writer)
                    self._written += 1
        except Exception as error:  # a tracker never stops a search, whatever MLflow, a disk or a network throws
            self._give_up(f"{type(error).__name__}: {error}")

    def _give_up(self, cause: str) -> None:
        with self._lock:
            if self._gave_up:
                return
            self._gave_up = True
        self._warn(
            f"recording in MLflow at {self._store.uri} stopped ({brief(cause)}); "
            "the search goes on without it, and the same command run again fills in what was missed"
        )


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


def _now() -> int:
    """Milliseconds since the epoch, as MLflow counts."""
    return time.time_ns() // 1_000_000
