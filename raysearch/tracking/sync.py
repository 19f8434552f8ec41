"""Completes the record of a search or a study in MLflow, from the ledger alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from raysearch.assessment.tracked_assessments import recorded_answers, recorded_assessments
from raysearch.errors import UserError
from raysearch.ledger.ledger import Ledger
from raysearch.ledger.locks import is_locked, locked
from raysearch.ledger.table import now
from raysearch.recovery.recovery_record import recoveries_of
from raysearch.recovery.refine import recorded_refinement
from raysearch.recovery.stage_record import StageRecord, recorded_stages, stage_events
from raysearch.searching.result import SearchResult
from raysearch.searching.search_record import SEARCHES, SearchRecord, record_mlflow_run
from raysearch.studies.collect import collect, has_ended
from raysearch.studies.spec import cell_labels
from raysearch.studies.study_record import STUDIES, CellRecord, StudyRecord
from raysearch.text.numbers import count
from raysearch.tracking.mlflow.assessments import record_answers, record_assessments, record_recovery
from raysearch.tracking.mlflow.client import attempt, cause_of, quiet
from raysearch.tracking.mlflow.study import begin_study, end_failed, open_runs, record_report
from raysearch.tracking.options import MlflowStore, TrackingOptions
from raysearch.tracking.state import SearchState


@dataclass(frozen=True)
class SyncedSearch:
    """A search that is completely recorded in MLflow.

    Args:
        search_id: The id of the search.
        mlflow_run_id: The id of its MLflow run.
        trials: The number of its trials.
        missing: How many of the trials were missing in MLflow before.
    """

    search_id: str
    mlflow_run_id: str
    trials: int
    missing: int

    @property
    def searches(self) -> tuple[SyncedSearch, ...]:
        """The search itself; a study has several."""
        return (self,)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Sentences on the parts that cannot be recorded yet; a search has none."""
        return ()


@dataclass(frozen=True)
class SyncedStudy:
    """A study whose results so far are completely recorded in MLflow.

    Args:
        study_id: The id of the study.
        mlflow_run_id: The id of its MLflow run.
        searches: Its searches that have ended.
        unfinished: The ids of the searches that have no result, or that another process runs at this moment.
        report: Whether its report was written, and so was recorded too.
    """

    study_id: str
    mlflow_run_id: str
    searches: tuple[SyncedSearch, ...]
    unfinished: tuple[str, ...]
    report: bool

    @property
    def left_out(self) -> tuple[str, ...]:
        """Sentences on the parts that cannot be recorded yet."""
        sentences = []
        if self.unfinished:
            searches = count(len(self.unfinished), "search has", "searches have")
            sentences.append(f"{searches} not ended yet; the study's command resumes and records the rest")
        if not self.report:
            sentences.append(f"its report is not written yet; raysearch report {self.study_id} writes and records it")
        return tuple(sentences)


def sync_search(record: SearchRecord, ledger: Ledger, tracking: TrackingOptions) -> SyncedSearch:
    """Write all parts of a search that are missing in MLflow. The record then names the MLflow run and its place.

    Args:
        record: The recorded search.
        ledger: The ledger with the record.
        tracking: Where to write.

    Returns:
        The MLflow run, and how many trials were missing in it.

    Raises:
        UserError: The search has not ended, another process runs it, or MLflow cannot be written to.
    """
    return _sync_search(record, ledger, tracking)


def sync_study(record: StudyRecord, ledger: Ledger, tracking: TrackingOptions) -> SyncedStudy:
    """Write all parts of a study that are missing in MLflow. The record then names the MLflow run and its place.

    The parts are the study's run, its searches as child runs, and its report if that was written.

    Args:
        record: The recorded study.
        ledger: The ledger with the record.
        tracking: Where to write.

    Returns:
        The MLflow run, the searches that have ended, and the others.

    Raises:
        UserError: MLflow cannot be written to.
    """
    return _sync_study(record, ledger, tracking)


def complete_killed_searches(
    study: StudyRecord, ledger: Ledger, tracking: TrackingOptions, warn: Callable[[str], None]
) -> None:
    """Complete the MLflow runs of a study's searches whose processes were killed while they recorded.

    The runs of searches whose process died are marked as failed. Searches that a process runs are left alone.

    Args:
        study: The recorded study.
        ledger: The ledger with the study and its searches.
        tracking: Where the study is recorded.
        warn: It is called with a sentence if MLflow cannot be written to; the error is not raised.
    """
    parent = study.mlflow_run_id
    if tracking.type == "none" or parent is None:
        return
    try:
        running = attempt(lambda: open_runs(tracking.store, parent))
        run_ids = {run.data.tags["raysearch.search_id"]: run.info.run_id for run in running}
        records = SEARCHES.by_ids(ledger, [cell.search_id for cell in study.cells])
        for cell in study.cells:
            record = records.get(cell.search_id)
            if record is None or is_locked(ledger, record.search_id):
                continue
            if record.state == "failed":
                if record.search_id in run_ids:
                    attempt(partial(end_failed, tracking.store, run_ids[record.search_id], record.failure or ""))
            elif record.result is not None and record.mlflow_run_id in {None, *run_ids.values()}:
                _sync_search(record, ledger, tracking, cell, parent)
    except Exception as error:  # recording never stops a study, whatever MLflow, a disk or a network throws
        warn(
            f"the study is not completely recorded in MLflow ({cause_of(error)}); "
            f"complete it later by: raysearch sync {study.study_id}"
        )


def _sync_search(
    record: SearchRecord,
    ledger: Ledger,
    tracking: TrackingOptions,
    cell: CellRecord | None = None,
    parent: str = "",
) -> SyncedSearch:
    """Write all parts of a search that are missing in MLflow.

    If it is a `cell` of a study, it gets its labels there, its run becomes a child of the study's run `parent`, and a
    process that writes it at this moment is waited for.
    """
    with locked(ledger, record.search_id, "SEARCH", wait=cell is not None):  # two processes would write the same trials
        if record.result is None:
            raise UserError(
                f"SEARCH={record.search_id} is {record.state}, so there is nothing to sync yet; raysearch resume "
                f"{record.search_id} resumes and records it"
            )
        result = record.result
        if cell is not None:
            result = replace(result, labels=cell_labels(cell, record.settings.remove, cell.seed), parent=parent)
        with _writing(tracking):
            synced = _publish(tracking, result)
            _write_assessments(tracking.store, synced.mlflow_run_id, record, ledger)
            _publish_stages(tracking, synced.mlflow_run_id, recorded_stages(ledger, record))
            if cell is not None:
                record_assessments(tracking.store, {synced.mlflow_run_id: cell.named})
        record_mlflow_run(ledger, record.search_id, synced.mlflow_run_id, tracking=_section(record.config, tracking))
        return synced


def _write_assessments(store: MlflowStore, run_id: str, record: SearchRecord, ledger: Ledger) -> None:
    """Write the recorded assessments, answers and recoveries of a search's masks."""
    record_assessments(store, {run_id: recorded_assessments(ledger, record)})
    record_answers(store, {run_id: recorded_answers(ledger, record)})
    result = record.finished_result
    masks = {trial.mask for trial in result.trials} | {result.mask}
    for recovery in recoveries_of(ledger, result.fingerprints["model"], masks):
        if recovery.search_id == record.search_id:
            record_recovery(store, run_id, recovery.event(record))
    for event in (*recorded_refinement(ledger, record), *stage_events(ledger, record)):
        record_recovery(store, run_id, event)


def publish_stages(
    record: SearchRecord, ledger: Ledger, tracking: TrackingOptions, warn: Callable[[str], None]
) -> None:
    """Write the searches of a finished search's stages, as runs below its own run.

    Args:
        record: The recorded search, with its MLflow run.
        ledger: The ledger with the record.
        tracking: Where to write.
        warn: It is called with a sentence if MLflow cannot be written to; the error is not raised.
    """
    run_id = record.mlflow_run_id
    if tracking.type == "none" or run_id is None:
        return
    stages = recorded_stages(ledger, record)  # read here: MLflow is called in another thread
    try:
        attempt(lambda: _publish_stages(tracking, run_id, stages))
    except Exception as error:  # recording never stops a search, whatever MLflow, a disk or a network throws
        warn(
            f"the stages of the search are not completely recorded in MLflow ({cause_of(error)}); complete them later "
            f"by: raysearch sync {record.search_id}"
        )


def _publish_stages(tracking: TrackingOptions, run_id: str, stages: Sequence[StageRecord]) -> None:
    for stage in stages:
        _publish(tracking, replace(stage.search, parent=run_id))


def _publish(tracking: TrackingOptions, result: SearchResult) -> SyncedSearch:
    """Write all parts of a search that its run does not have."""
    from raysearch.tracking.mlflow.publisher import SearchPublisher

    state = SearchState.of(result)
    publisher = SearchPublisher(tracking, state, seconds_before=0.0)
    publisher.publish(state)
    n_missing = publisher.count_missing(result.trials)
    return SyncedSearch(result.search_id, publisher.run_id, len(result.trials), n_missing)


def _sync_study(study: StudyRecord, ledger: Ledger, tracking: TrackingOptions) -> SyncedStudy:
    with _writing(tracking):
        parent = begin_study(tracking.store, tracking.experiment, study.study_id, study.config, reopen=False)
    config = {**study.config, "tracking": _section(study.config, tracking)}
    if (parent, config) != (study.mlflow_run_id, study.config):
        STUDIES.change(  # another command may have changed the record meanwhile
            ledger,
            study.study_id,
            lambda record: replace(record or study, config=config, mlflow_run_id=parent, updated=now()),
        )
    records = SEARCHES.by_ids(ledger, [cell.search_id for cell in study.cells])
    ended_searches = {
        search_id: record
        for search_id, record in records.items()
        if record.result is not None and not is_locked(ledger, search_id)
    }
    searches = tuple(
        _sync_search(ended_searches[cell.search_id], ledger, tracking, cell, parent)
        for cell in study.cells
        if cell.search_id in ended_searches
    )
    report_folder = tracking.folder / "reports" / study.study_id
    files = sorted(report_folder.iterdir()) if report_folder.is_dir() else []
    results = collect(study, ledger, tracking.link)
    ended = has_ended(results, ledger)
    if files or ended:
        with _writing(tracking):
            record_report(tracking.store, parent, results.totals, files, ended)
    unfinished = tuple(cell.search_id for cell in study.cells if cell.search_id not in ended_searches)
    return SyncedStudy(study.study_id, parent, searches, unfinished, bool(files))


def _section(config: Mapping[str, Any], tracking: TrackingOptions) -> dict[str, Any]:
    """Return the section ``tracking`` of a recorded configuration with the current options."""
    current = {key: getattr(tracking, key) for key in ("type", "uri", "experiment", "child_runs")}
    return {**config["tracking"], **current}


@contextmanager
def _writing(tracking: TrackingOptions) -> Iterator[None]:
    """Turn errors of MLflow into a UserError that names the store."""
    try:
        quiet()
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"tracking.uri={tracking.store.redacted_uri} cannot be written to ({cause_of(error)}); "
            "sync again once it can be, or name another with tracking.uri=…"
        ) from error
