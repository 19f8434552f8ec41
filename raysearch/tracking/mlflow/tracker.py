"""Records searches and studies in MLflow: ``tracking=mlflow``.

A write takes 3-50 ms and the import of MLflow takes seconds, so the thread of a search writes nothing:

    search thread    search_started  trial  trial  round_done …  close      each only adds an event to a list
    tracker thread   import mlflow │ MlflowWriter writes the events in order

If the tracker thread fails, it warns once and starts again after a while: the writer looks up the recorded parts and
adds the missing ones. Parts that are missing at the end are written from the ledger by `raysearch.tracking.sync`, or
when the same search is repeated. A study records little, so its parts are written at once; the study waits for them.
"""

from __future__ import annotations

import logging
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

Event = Callable[["MlflowWriter", int], None]  # its arguments are the writer and the time, in ms since the epoch
_T = TypeVar("_T")
_log = logging.getLogger(__name__)
_SHOW_INTERVAL_S = 0.5
_IMPORT_DELAY_S = 10.0  # the longest wait for the first event before MLflow is imported


def open_tracker(
    options: TrackingOptions, warn: Callable[[str], None], show: Callable[[str], None] | None = None
) -> Tracker:
    """Return the tracker that the options select.

    Args:
        options: The options.
        warn: See `MlflowTracker`.
        show: See `MlflowTracker`.
    """
    return Tracker() if options.type == "none" else MlflowTracker(options, warn, show)


class MlflowTracker(Tracker):
    """Writes a search as a parent run with a child run for each trial, or a study as the parent run of its searches.

    A tracker records one search or one study, and is then closed.

    Args:
        options: Where and how to record.
        warn: It is called with one sentence, at most once for a search, if recording failed. The tracker's thread
            calls it.
        show: It is called with the progress of writing from time to time, while `close` waits.
        timeout_s: How long `close` waits while nothing is written.
        retry_s: How long after a failure the tracker starts again while the search runs. It also starts again at the
            end of the search.
    """

    def __init__(
        self,
        options: TrackingOptions,
        warn: Callable[[str], None],
        show: Callable[[str], None] | None = None,
        timeout_s: float = 25.0,
        retry_s: float = 60.0,
    ) -> None:
        self._options = options
        self._store = options.store
        self._store_option = option_for(options.folder, options.ledger)
        self._warn = warn
        self._show = show
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._events: list[tuple[Event, int]] = []
        self._changed = threading.Condition()
        self._closing = False
        self._gave_up = False
        self._warned = False
        self._thread: threading.Thread | None = None
        self._n_written = 0
        self._progress_at_s = 0.0
        self._sync_arguments = ""
        self._old_receipt: str | None = None
        self._result: SearchResult | None = None
        self._seconds_before: float | None = None

    @override
    def resume(self, run_id: str, receipt: str) -> None:
        self.run_id = run_id
        self._old_receipt = receipt

    @override
    def search_started(self, header: SearchHeader, expected: SearchForecast | None = None) -> None:
        # A study shows equal warnings once, so its searches must give the same warning.
        self._sync_arguments = "with the study's id" if header.labels else header.search_id + self._store_option
        arguments = (header, now_ms())
        self._thread = threading.Thread(target=self._run_thread, args=arguments, name="mlflow-tracker", daemon=True)
        if self._old_receipt is None:
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
        if self._old_receipt is not None and self._old_receipt == self._receipt_of_result() and not self._has_begun:
            self.receipt = self._old_receipt
            return
        self._begin()
        self._add(lambda writer, now: writer.finish(result, failure, now, stopped))

    @override
    def study_started(self, header: StudyHeader) -> None:
        remedy = "the study continues; record it later by: raysearch sync"
        study_remedy = f"{remedy} {header.study_id}{self._store_option}"
        study = self._options.experiment, header.study_id, header.config
        self.run_id = self._attempt("the study is", study_remedy, begin_study, *study)
        if self.run_id is not None and header.recorded:
            adopt_remedy = f"{remedy}, with the study's id"
            self._attempt("the study's earlier searches are", adopt_remedy, adopt, self.run_id, header.recorded)

    @override
    def assessed(self, assessments: Sequence[tuple[SearchRecord, Mapping[str, float]]]) -> None:
        self._record_for_searches("the assessment is", assessments, record_assessments)

    @override
    def answered(self, answers: Sequence[tuple[SearchRecord, Mapping[str, str]]]) -> None:
        self._record_for_searches("answers are", answers, record_answers)

    @override
    def recovered(
        self, search: SearchRecord, header: RecoveryHeader, points: Sequence[LossPoint], numbers: Mapping[str, float]
    ) -> None:
        if (run_id := search.mlflow_run_id) is not None:
            remedy = "repeat the same command later"
            self._attempt("the recovery is", remedy, record_recovery, run_id, header, points, numbers)

    @override
    def study_stopped(self, run_id: str | None, search_ids: Sequence[str]) -> None:
        if run_id is not None:
            remedy = "it stays RUNNING there until the same command ends"
            self._attempt("the stop of the study is", remedy, stop_study, run_id, search_ids)

    @override
    def study_reported(
        self, run_id: str | None, totals: Mapping[str, float], files: Sequence[Path], ended: bool
    ) -> None:
        if run_id is not None:
            remedy = "record it later by: raysearch sync, with the study's id"
            self._attempt("the report is", remedy, record_report, run_id, totals, files, ended)

    @override
    def close(self) -> str | None:
        """Wait until everything is written, but stop waiting if nothing is written for `timeout_s`."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        n_shown = -1
        began_s = time.monotonic()
        while self._thread is not None and self._thread.is_alive() and not self._gave_up:
            if n_shown != self._n_written:
                n_shown = self._n_written
                n_events = len(self._events)
                if self._show is not None:
                    self._show(f"recording in MLflow: {min(n_shown, n_events):,} of {n_events:,} events")
            elif time.monotonic() - max(began_s, self._progress_at_s) >= self._timeout_s:
                self._gave_up = True
                self._warn_once(f"nothing was written for {self._timeout_s:g} s")
            self._thread.join(min(_SHOW_INTERVAL_S, self._timeout_s))
        return self.run_id

    def _record_for_searches(
        self, subject: str, results: Sequence[tuple[SearchRecord, _T]], write: Callable[[Store, dict[str, _T]], None]
    ) -> None:
        """Write results of searches to their runs; searches without a run are left out."""
        by_run = {search.mlflow_run_id: result for search, result in results if search.mlflow_run_id is not None}
        if by_run:
            self._attempt(subject, "record it later by raysearch sync, or by the same command", write, by_run)

    def _attempt(self, subject: str, remedy: str, work: Callable[..., _T], *args: object) -> _T | None:
        """Call a function with the store at once; warn and return None if it fails or takes too long."""
        try:
            return attempt(lambda: work(self._store, *args))
        except Exception as error:  # a tracker never stops anything, whatever MLflow, a disk or a network throws
            self._warn(f"{subject} not recorded in MLflow at {self._store.redacted_uri} ({cause_of(error)}); {remedy}")
            return None

    @property
    def _has_begun(self) -> bool:
        return self._thread is not None and self._thread.ident is not None

    def _begin(self) -> None:
        """Start the tracker's thread, unless it was started."""
        if self._thread is not None and not self._has_begun:
            self._thread.start()

    def _receipt_of_result(self) -> str | None:
        """Return the receipt of a completely recorded search; None if there is no result, or no database.

        The receipt changes if the result or the place of the record changes.
        """
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

    def _run_thread(self, header: SearchHeader, now: int) -> None:
        with self._changed:  # MLflow's import takes two seconds of processor time, so the first evaluation goes first
            self._changed.wait_for(lambda: self._events or self._closing, _IMPORT_DELAY_S)
        is_last_try = False
        while not is_last_try:
            try:
                quiet()
                self._write(header, now)
                if not self._gave_up:
                    self.receipt = self._receipt_of_result()
                return
            except Exception as error:  # a tracker never stops a search, whatever MLflow, a disk or a network throws
                is_last_try = self._closing
                self._warn_once(cause_of(error))
                _log.info("recording in MLflow failed: %s", cause_of(error))
            with self._changed:
                self._changed.wait_for(lambda: self._closing, self._retry_s)

    def _write(self, header: SearchHeader, now: int) -> None:
        """Write all events from the first one, including those that are added meanwhile."""
        from raysearch.tracking.mlflow.writer import MlflowWriter

        writer = MlflowWriter(self._options, header, now, self._seconds_before, self._note_progress)
        if self._gave_up:  # the server answered so late that nobody waits for it any more
            return
        self.run_id = writer.run_id
        self._seconds_before = writer.seconds_before
        writer.open_run()
        self._note_progress()
        place = 0
        while (next_event := self._next(place)) is not None and not self._gave_up:
            event, at = next_event
            event(writer, at)
            self._n_written += 1
            self._note_progress()
            place += 1
            if place == len(self._events):  # no other event is waiting, so write the collected child runs
                writer.flush()

    def _note_progress(self) -> None:
        self._progress_at_s = time.monotonic()

    def _next(self, place: int) -> tuple[Event, int] | None:
        """Wait for the event at a place, and return it with its time; None after the last event."""
        with self._changed:
            self._changed.wait_for(lambda: place < len(self._events) or self._closing)
            return self._events[place] if place < len(self._events) else None

    def _warn_once(self, cause: str) -> None:
        with self._changed:
            if self._warned:
                return
            self._warned = True
        self._warn(
            f"recording in MLflow at {self._store.redacted_uri} stopped ({cause}); the search continues, and missing "
            f"parts are written once MLflow answers again, or later by: raysearch sync {self._sync_arguments}"
        )
