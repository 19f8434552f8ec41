"""Records searches in MLflow: ``tracking=mlflow``.

A write costs 10-50 ms and importing MLflow costs seconds, so none of it happens where the search runs:

    search thread    start  trial  trial  round_done …  close        each only adds to what is told
    tracker thread   import mlflow │ MlflowWriter writes it in order

If anything goes wrong on the tracker thread, it says so once, and begins anew after a while: the writer finds what is
there and fills in what is not, so a server that comes back before the search ends gets all of it. Otherwise the ledger
has everything: `raysearch.tracking.sync` writes it later, and so does the same search run again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from raysearch.core.paths import options_for
from raysearch.search.result import RoundSummary, SearchHeader, SearchResult, Trial
from raysearch.tracking.mlflow.contact import cause_of, quiet
from raysearch.tracking.store import Store

if TYPE_CHECKING:
    from raysearch.tracking.mlflow.writer import MlflowWriter

Event = Callable[["MlflowWriter"], None]


class MlflowTracker:
    """Writes each search as a parent run and each of its trials as a child run. Tells one search, then is closed.

    Args:
        uri: MLflow's tracking URI; None for the embedded store, ``<folder>/mlflow.db``.
        experiment: MLflow's name for a group of searches.
        folder: Holds the embedded store, and the artifacts of any store that is not a server.
        warn: Told, in one sentence and at most once, if recording failed. It is called on the tracker's thread.
        timeout_s: How long `close` waits while nothing gets written.
        retry_s: How long after a failure it begins anew while the search goes on; it does so at the search's end too.
        ledger: Where searches are on record, for whoever is told what to do later; None for the folder's own.

    Attributes:
        run_id: MLflow's id of the parent run; None until there is one.
    """

    def __init__(
        self,
        uri: str | None,
        experiment: str,
        folder: Path,
        warn: Callable[[str], None],
        timeout_s: float = 25.0,
        retry_s: float = 60.0,
        ledger: Path | None = None,
    ) -> None:
        self._store = Store.locate(uri, folder)
        self._options = options_for(folder, ledger)
        self._experiment = experiment
        self._warn = warn
        self._timeout_s, self._retry_s = timeout_s, retry_s
        self._told: list[Event] = []
        self._changed = threading.Condition()
        self._closing = self._gave_up = self._warned = False
        self._thread: threading.Thread | None = None
        self._written = 0
        self._later = ""
        self._seconds_before: float | None = None
        self.run_id: str | None = None

    def start(self, header: SearchHeader) -> None:
        """See `Tracker`."""
        # A study tells its warnings once each, so those of its searches are alike.
        self._later = "with the study's id" if header.labels else header.search_id + self._options
        self._thread = threading.Thread(target=self._work, args=(header, _now()), name="mlflow-tracker", daemon=True)
        self._thread.start()

    def trial(self, trial: Trial) -> None:
        """See `Tracker`."""
        now = _now()
        self._tell(lambda writer: writer.trial(trial, now))

    def round_done(self, summary: RoundSummary) -> None:
        """See `Tracker`."""
        now = _now()
        self._tell(lambda writer: writer.round_done(summary, now))

    def finish(self, result: SearchResult | None, failure: str | None = None) -> None:
        """See `Tracker`."""
        now = _now()
        self._tell(lambda writer: writer.finish(result, failure, now))

    def close(self) -> str | None:
        """Waits until everything is written, as long as something is; returns MLflow's id of the parent run."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        written = -1
        while self._is_writing() and written != self._written:
            written = self._written
            if self._thread is not None:
                self._thread.join(self._timeout_s)
        if self._is_writing():
            self._gave_up = True
            self._say(f"nothing was written for {self._timeout_s:g} s")
        return self.run_id

    def _is_writing(self) -> bool:
        return self._thread is not None and self._thread.is_alive() and not self._gave_up

    def _tell(self, event: Event) -> None:
        with self._changed:
            self._told.append(event)
            self._changed.notify_all()

    def _work(self, header: SearchHeader, now: int) -> None:
        last = False
        while not last:
            try:
                with quiet():
                    self._write(header, now)
                return
            except Exception as error:  # a tracker never stops a search, whatever MLflow, a disk or a network throws
                last = self._closing
                self._say(cause_of(error))
            with self._changed:
                self._changed.wait_for(lambda: self._closing, self._retry_s)

    def _write(self, header: SearchHeader, now: int) -> None:
        """Writes all that was and will be told, from its beginning."""
        from raysearch.tracking.mlflow.writer import MlflowWriter

        writer = MlflowWriter(self._store, self._experiment, header, now, self._seconds_before)
        if self._gave_up:  # while the server thought about it, nobody waits for this any more
            return
        self.run_id, self._seconds_before = writer.run_id, writer.seconds_before
        writer.take_up()
        place = 0
        while (event := self._next(place)) is not None and not self._gave_up:
            event(writer)
            self._written += 1
            place += 1

    def _next(self, place: int) -> Event | None:
        """What was told at a place in order, once it is; None after the last."""
        with self._changed:
            self._changed.wait_for(lambda: place < len(self._told) or self._closing)
            return self._told[place] if place < len(self._told) else None

    def _say(self, cause: str) -> None:
        with self._changed:
            if self._warned:
                return
            self._warned = True
        self._warn(
            f"recording in MLflow at {self._store.shown} stopped ({cause}); the search goes on, and what was missed is "
            f"written once MLflow answers again, or later by: raysearch sync {self._later}"
        )


def _now() -> int:
    """Milliseconds since the epoch, as MLflow counts."""
    return time.time_ns() // 1_000_000
