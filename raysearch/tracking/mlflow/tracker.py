"""Records searches and studies in MLflow: ``tracking=mlflow``.

A write takes 3-50 ms and the import of MLflow takes seconds, so the thread of a search writes nothing:

    search thread    SearchStarted  TrialScored … RoundEnded …  SearchEnded  close     each only changes the state
    tracker thread   import mlflow │ SearchPublisher publishes the latest state, until there is no newer one

If the tracker thread fails, it warns once and publishes the latest state after a while. Parts that are missing at the
end are written from the ledger by `raysearch.tracking.sync`, or when the same search is repeated. A study records
little, so its parts are written at once; the study waits for them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import override

from raysearch.core.digest import digest
from raysearch.core.paths import option_for
from raysearch.core.trial import Trial
from raysearch.searching.events import (
    AnswersGenerated,
    MaskRecovered,
    MasksAssessed,
    RoundEnded,
    SearchEnded,
    SearchStarted,
    StudyReported,
    StudyStarted,
    StudyStopped,
    TrialScored,
)
from raysearch.searching.observer import Tracker
from raysearch.searching.result import RoundSummary, SearchHeader, SearchResult
from raysearch.searching.search_record import SearchRecord
from raysearch.tracking.mlflow.assessments import record_answers, record_assessments, record_recovery
from raysearch.tracking.mlflow.client import attempt, cause_of, quiet
from raysearch.tracking.mlflow.study import adopt, begin_study, record_report, stop_study
from raysearch.tracking.options import MlflowStore, TrackingOptions
from raysearch.tracking.state import SearchState

if TYPE_CHECKING:
    from raysearch.tracking.mlflow.publisher import SearchPublisher

_T = TypeVar("_T")
_log = logging.getLogger(__name__)
_SHOW_INTERVAL_S = 0.5
_IMPORT_DELAY_S = 10.0  # the longest wait for the first round before MLflow is imported


class _TooLateError(Exception):
    """Nobody waits any more for what is written."""


def open_tracker(
    options: TrackingOptions, warn: Callable[[str], None], show: Callable[[str], None] | None = None
) -> Tracker:
    """Return the tracker that the options select.

    Args:
        options: The options.
        warn: See `MlflowTracker`.
        show: See `MlflowTracker`.

    Returns:
        The tracker. With ``tracking=none`` it does nothing.
    """
    return Tracker() if options.type == "none" else MlflowTracker(options, warn, show)


class MlflowTracker(Tracker):
    """Writes a search as a run of MLflow, or a study as the parent run of its searches.

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
        self._old_receipt: str | None = None
        self._sync_arguments = ""
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()  # notified when the state or `_closing` changes
        self._header: SearchHeader | None = None
        self._began = 0.0
        self._trials: list[Trial] = []
        self._rounds: list[RoundSummary] = []
        self._round_ends: list[float] = []
        self._end: SearchEnded | None = None
        self._ended: float | None = None
        self._version = 0  # of the state; increases with each round
        self._published = 0  # the version of the last state that was published
        self._closing = False
        self._gave_up = False
        self._warned = False
        self._line = "importing MLflow"  # the last progress
        self._progress_at_s = 0.0
        self._seconds_before: float | None = None

    @override
    def resume(self, run_id: str, receipt: str) -> None:
        self.run_id = run_id
        self._old_receipt = receipt

    @override
    def on_search_started(self, event: SearchStarted) -> None:
        header = event.header
        # A study shows equal warnings once, so its searches must give the same warning.
        self._sync_arguments = "with the study's id" if header.labels else header.search_id + self._store_option
        with self._changed:
            self._header = header
            self._began = time.time()
            self._version += 1
        self._thread = threading.Thread(target=self._run_thread, name="mlflow-tracker", daemon=True)
        if self._old_receipt is None:
            self._begin()

    @override
    def on_trial_scored(self, event: TrialScored) -> None:
        if not event.trial.cached:
            self._begin()
        with self._changed:
            self._trials.append(event.trial)

    @override
    def on_round_ended(self, event: RoundEnded) -> None:
        with self._changed:
            self._rounds.append(event.summary)
            self._round_ends.append(time.time())
            self._version += 1
            self._changed.notify_all()

    @override
    def on_search_ended(self, event: SearchEnded) -> None:
        is_recorded = self._old_receipt is not None and self._old_receipt == self._receipt_of(event.result)
        if is_recorded and not self._has_begun:
            self.receipt = self._old_receipt
            return
        with self._changed:
            self._end = event
            self._ended = time.time()
            self._version += 1
            self._changed.notify_all()
        self._begin()

    @override
    def on_study_started(self, event: StudyStarted) -> None:
        header = event.header
        remedy = "the study continues; record it later by: raysearch sync"
        study_remedy = f"{remedy} {header.study_id}{self._store_option}"
        study = self._options.experiment, header.study_id, header.config
        self.run_id = self._attempt("the study is", study_remedy, begin_study, *study)
        if self.run_id is not None and header.recorded:
            adopt_remedy = f"{remedy}, with the study's id"
            self._attempt("the study's earlier searches are", adopt_remedy, adopt, self.run_id, header.recorded)

    @override
    def on_masks_assessed(self, event: MasksAssessed) -> None:
        self._record_for_searches("the assessment is", event.assessments, record_assessments)

    @override
    def on_answers_generated(self, event: AnswersGenerated) -> None:
        self._record_for_searches("answers are", event.answers, record_answers)

    @override
    def on_mask_recovered(self, event: MaskRecovered) -> None:
        if (run_id := event.search.mlflow_run_id) is not None:
            self._attempt("the recovery is", "repeat the same command later", record_recovery, run_id, event)

    @override
    def on_study_stopped(self, event: StudyStopped) -> None:
        if event.run_id is not None:
            remedy = "it stays RUNNING there until the same command ends"
            self._attempt("the stop of the study is", remedy, stop_study, event.run_id, event.search_ids)

    @override
    def on_study_reported(self, event: StudyReported) -> None:
        if event.run_id is not None:
            remedy = "record it later by: raysearch sync, with the study's id"
            report = event.run_id, event.totals, event.files, event.ended
            self._attempt("the report is", remedy, record_report, *report)

    @override
    def close(self) -> str | None:
        """Wait until everything is written, but stop waiting if nothing is written for `timeout_s`."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        began_s = time.monotonic()
        shown_line = ""
        while self._thread is not None and self._thread.is_alive() and not self._gave_up:
            if shown_line != self._line:
                shown_line = self._line
                if self._show is not None:
                    self._show(f"recording in MLflow: {shown_line}")
            elif time.monotonic() - max(began_s, self._progress_at_s) >= self._timeout_s:
                self._gave_up = True
                self._warn_once(f"nothing was written for {self._timeout_s:g} s")
            self._thread.join(min(_SHOW_INTERVAL_S, self._timeout_s))
        return self.run_id

    def _record_for_searches(
        self,
        subject: str,
        results: Sequence[tuple[SearchRecord, _T]],
        write: Callable[[MlflowStore, dict[str, _T]], None],
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

    def _receipt_of(self, result: SearchResult | None) -> str | None:
        """Return the receipt of a completely recorded search; None if there is no result, or no database.

        The receipt changes if the result or the place of the record changes.
        """
        if result is None:
            return None
        place: dict[str, Any] = {"uri": self._store.uri, "experiment": self._options.experiment}
        if (file := self._store.file) is not None:
            if not file.is_file():
                return None
            place["file"] = file.stat().st_ino
        trials = [(trial.round, str(trial.mask), trial.loss, trial.failure) for trial in result.trials]
        return digest([place, self._options.child_runs, trials, result.removed, result.complete], 32)

    def _run_thread(self) -> None:
        """Publish the latest state until the tracker is closed and there is no newer state."""
        with self._changed:  # MLflow's import takes two seconds of processor time, so the first evaluation goes first
            self._changed.wait_for(lambda: self._version > 1 or self._closing, _IMPORT_DELAY_S)
        quiet()
        publisher: SearchPublisher | None = None
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._version > self._published or self._closing)
                if self._version == self._published:
                    break
                version = self._version
                is_last_try = self._closing
                state = self._state()
            try:
                publisher = publisher or self._open(state)
                publisher.publish(state)
                self._published = version
            except _TooLateError:
                return
            except Exception as error:  # a tracker never stops a search, whatever MLflow, a disk or a network throws
                _log.info("recording in MLflow failed: %s", cause_of(error))
                self._warn_once(cause_of(error))
                if is_last_try:
                    return
                publisher = None
                with self._changed:
                    self._changed.wait_for(lambda: self._closing, self._retry_s)
        self.receipt = self._receipt_of(None if self._end is None else self._end.result)

    def _state(self) -> SearchState:
        assert self._header is not None, "the search has started"
        return SearchState(
            header=self._header,
            began=self._began,
            trials=tuple(self._trials),
            rounds=tuple(self._rounds),
            round_ends=tuple(self._round_ends),
            end=self._end,
            ended=self._ended,
        )

    def _open(self, state: SearchState) -> SearchPublisher:
        """Return a publisher, which knows what is recorded at this moment."""
        from raysearch.tracking.mlflow.publisher import SearchPublisher

        self._note_progress("opening the store")
        publisher = SearchPublisher(self._options, state, self._seconds_before, self._note_progress)
        self._note_progress("writing the search")
        self.run_id = publisher.run_id
        self._seconds_before = publisher.seconds_before
        return publisher

    def _note_progress(self, line: str) -> None:
        """Note that something was written.

        Raises:
            _TooLateError: The server answered so late that nobody waits for it any more.
        """
        if self._gave_up:
            raise _TooLateError
        self._line = line
        self._progress_at_s = time.monotonic()

    def _warn_once(self, cause: str) -> None:
        with self._changed:
            if self._warned:
                return
            self._warned = True
        self._warn(
            f"recording in MLflow at {self._store.redacted_uri} stopped ({cause}); the search continues, and missing "
            f"parts are written once MLflow answers again, or later by: raysearch sync {self._sync_arguments}"
        )
