"""Records searches and studies in MLflow: ``tracking=mlflow``.

A write costs 3-50 ms and importing MLflow costs seconds, so nothing of a search is written where the search runs:

    search thread    search_started  trial  trial  round_done …  close      each only adds an event to a list
    tracker thread   import mlflow │ MlflowWriter writes the events in order

If anything goes wrong on the tracker thread, it says so once, and begins anew after a while: the writer finds what is
there and fills in what is not. What is lacking in the end `raysearch.tracking.sync` writes from the ledger, and so does
the same search again. What a study records is little, and written at once, on a thread that is waited for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import override

from raysearch.core.digest import digest
from raysearch.core.paths import option_for
from raysearch.searching.forecast import SearchForecast
from raysearch.searching.observer import LossPoint, RecoveryHeader, StudyHeader, Tracker
from raysearch.searching.record import SearchRecord
from raysearch.searching.result import RoundSummary, SearchHeader, SearchResult
from raysearch.searching.trial import Trial
from raysearch.tracking.mlflow.assessments import record_answers, record_assessments, record_recovery
from raysearch.tracking.mlflow.client import attempt, cause_of, now_ms, quiet
from raysearch.tracking.mlflow.study import adopt, begin_study, record_report, stop_study
from raysearch.tracking.options import Store, TrackingOptions

if TYPE_CHECKING:
    from raysearch.tracking.mlflow.writer import MlflowWriter

Event = Callable[["MlflowWriter", int], None]  # given when it happened
_T = TypeVar("_T")
_SHOW_S = 0.5
_HEAD_START_S = 10.0


def open_tracker(
    options: TrackingOptions, warn: Callable[[str], None], show: Callable[[str], None] | None = None
) -> Tracker:
    """Return the tracker that the options name; `warn` and `show` are as of `MlflowTracker`."""
    return Tracker() if options.type == "none" else MlflowTracker(options, warn, show)


class MlflowTracker(Tracker):
    """Writes a search as a parent run with a child run for each trial; or a study as the parent of its searches.

    It records one search, or one study, and is closed.

    Args:
        warn: Told, in one sentence and at most once, if recording failed. It is called on the tracker's thread.
        show: Told how far writing is, in a line now and then while `close` waits.
        timeout_s: How long `close` waits while nothing gets written.
        retry_s: How long after a failure it begins anew while the search goes on; it does so at the search's end too.
    """

    def __init__(
        self,
        options: TrackingOptions,
        warn: Callable[[str], None],
        show: Callable[[str], None] | None = None,
        timeout_s: float = 25.0,
        retry_s: float = 60.0,
    ) -> None:
        self._options, self._store = options, options.store
        self._words = option_for(options.folder, options.ledger)
        self._warn, self._show = warn, show
        self._timeout_s, self._retry_s = timeout_s, retry_s
        self._events: list[tuple[Event, int]] = []
        self._changed = threading.Condition()
        self._closing = self._gave_up = self._warned = False
        self._thread: threading.Thread | None = None
        self._written = 0
        self._wrote_at = 0.0
        self._later = ""
        self._receipt_before: str | None = None
        self._result: SearchResult | None = None
        self._seconds_before: float | None = None

    @override
    def resume(self, run_id: str, receipt: str) -> None:
        self.run_id, self._receipt_before = run_id, receipt

    @override
    def search_started(self, header: SearchHeader, expected: SearchForecast | None = None) -> None:
        # A study tells its warnings once each, so those of its searches are alike.
        self._later = "with the study's id" if header.labels else header.search_id + self._words
        self._thread = threading.Thread(target=self._work, args=(header, now_ms()), name="mlflow-tracker", daemon=True)
        if self._receipt_before is None:
            self._begin()

    @override
    def trial(self, trial: Trial) -> None:
        if not trial.cached:
            self._begin()
        self._add(lambda writer, now: writer.trial(trial, now))

    @override
    def round_done(self, summary: RoundSummary) -> None:
        self._add(lambda writer, now: writer.round_done(summary, now))

    @override
    def search_ended(self, result: SearchResult | None, failure: str | None = None, stopped: bool = False) -> None:
        self._result = result
        if self._receipt_before is not None and self._receipt_before == self._receipt_now() and not self._has_begun:
            self.receipt = self._receipt_before
            return
        self._begin()
        self._add(lambda writer, now: writer.finish(result, failure, now, stopped))

    @override
    def study_started(self, header: StudyHeader) -> None:
        again = "it goes on without; later: raysearch sync"
        study = self._options.experiment, header.study_id, header.config
        self.run_id = self._attempt("the study is", f"{again} {header.study_id}{self._words}", begin_study, *study)
        if self.run_id is not None and header.recorded:
            later = f"{again}, with the study's id"
            self._attempt("what the study had found before is", later, adopt, self.run_id, header.recorded)

    @override
    def assessed(self, found: Sequence[tuple[SearchRecord, Mapping[str, float]]]) -> None:
        self._put("the assessment is", found, record_assessments)

    @override
    def answered(self, found: Sequence[tuple[SearchRecord, Mapping[str, str]]]) -> None:
        self._put("answers are", found, record_answers)

    @override
    def recovered(
        self, search: SearchRecord, header: RecoveryHeader, points: Sequence[LossPoint], numbers: Mapping[str, float]
    ) -> None:
        if (run_id := search.mlflow_run_id) is not None:
            later = "later: the same command again"
            self._attempt("the recovery is", later, record_recovery, run_id, header, points, numbers)

    @override
    def study_stopped(self, run_id: str | None, search_ids: Sequence[str]) -> None:
        if run_id is not None:
            later = "it stays RUNNING there until the same command ends"
            self._attempt("its stop is", later, stop_study, run_id, search_ids)

    @override
    def study_reported(
        self, run_id: str | None, totals: Mapping[str, float], files: Sequence[Path], ended: bool
    ) -> None:
        if run_id is not None:
            later = "later: raysearch sync, with the study's id"
            self._attempt("the report is", later, record_report, run_id, totals, files, ended)

    @override
    def close(self) -> str | None:
        """Wait until everything is written, for as long as something is."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        written, began = -1, time.monotonic()
        while self._thread is not None and self._thread.is_alive() and not self._gave_up:
            if written != self._written:
                written, n_events = self._written, len(self._events)
                if self._show is not None:
                    self._show(f"recording in MLflow: {min(written, n_events):,} of {n_events:,} events")
            elif time.monotonic() - max(began, self._wrote_at) >= self._timeout_s:
                self._gave_up = True
                self._say(f"nothing was written for {self._timeout_s:g} s")
            self._thread.join(min(_SHOW_S, self._timeout_s))
        return self.run_id

    def _put(
        self, subject: str, found: Sequence[tuple[SearchRecord, _T]], write: Callable[[Store, dict[str, _T]], None]
    ) -> None:
        """Put something of searches on their runs, where they have some."""
        by_run = {search.mlflow_run_id: of for search, of in found if search.mlflow_run_id is not None}
        if by_run:
            self._attempt(subject, "later: raysearch sync, or the same command again", write, by_run)

    def _attempt(self, subject: str, later: str, work: Callable[..., _T], *args: object) -> _T | None:
        """Do some work of the store now; say so if it fails or takes too long."""
        try:
            return attempt(lambda: work(self._store, *args))
        except Exception as error:  # a tracker never stops anything, whatever MLflow, a disk or a network throws
            self._warn(f"{subject} not recorded in MLflow at {self._store.shown} ({cause_of(error)}); {later}")
            return None

    @property
    def _has_begun(self) -> bool:
        return self._thread is not None and self._thread.ident is not None

    def _begin(self) -> None:
        """Begin to write the search, unless that has begun."""
        if self._thread is not None and not self._has_begun:
            self._thread.start()

    def _receipt_now(self) -> str | None:
        """Return the receipt of a search that is written whole; None without a result, or without a database."""
        if (result := self._result) is None:
            return None
        place: dict[str, Any] = {"uri": self._store.uri, "experiment": self._options.experiment}
        if (file := self._store.file) is not None:
            if not file.is_file():
                return None
            place["file"] = file.stat().st_ino
        trials = [(trial.round, str(trial.mask), trial.loss, trial.failure) for trial in result.trials]
        return digest([place, self._options.max_child_runs, trials, result.removed, result.complete], 32)

    def _add(self, event: Event) -> None:
        with self._changed:
            self._events.append((event, now_ms()))
            self._changed.notify_all()

    def _work(self, header: SearchHeader, now: int) -> None:
        with self._changed:  # its import takes two seconds of processor time, which the first unit has a better use for
            self._changed.wait_for(lambda: self._events or self._closing, _HEAD_START_S)
        last = False
        while not last:
            try:
                quiet()
                self._write(header, now)
                if not self._gave_up:
                    self.receipt = self._receipt_now()
                return
            except Exception as error:  # a tracker never stops a search, whatever MLflow, a disk or a network throws
                last = self._closing
                self._say(cause_of(error))
            with self._changed:
                self._changed.wait_for(lambda: self._closing, self._retry_s)

    def _write(self, header: SearchHeader, now: int) -> None:
        """Write all events, those to come too, from the first one on."""
        from raysearch.tracking.mlflow.writer import MlflowWriter

        writer = MlflowWriter(self._options, header, now, self._seconds_before, self._wrote)
        if self._gave_up:  # while the server thought about it, nobody waits for this any more
            return
        self.run_id, self._seconds_before = writer.run_id, writer.seconds_before
        writer.take_up()
        self._wrote()
        place = 0
        while (told := self._next(place)) is not None and not self._gave_up:
            event, at = told
            event(writer, at)
            self._written += 1
            self._wrote()
            place += 1
            if place == len(self._events):  # nothing more to write with it
                writer.flush()

    def _wrote(self) -> None:
        self._wrote_at = time.monotonic()

    def _next(self, place: int) -> tuple[Event, int] | None:
        """Return the event at a place, once there is one; None after the last."""
        with self._changed:
            self._changed.wait_for(lambda: place < len(self._events) or self._closing)
            return self._events[place] if place < len(self._events) else None

    def _say(self, cause: str) -> None:
        with self._changed:
            if self._warned:
                return
            self._warned = True
        self._warn(
            f"recording in MLflow at {self._store.shown} stopped ({cause}); the search goes on, and what was missed is "
            f"written once MLflow answers again, or later by: raysearch sync {self._later}"
        )
