"""Writes to MLflow what it lacks, from the ledger alone: a search, or a study with all that it found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from raysearch.assessment.recorded import recorded_answers, recorded_assessments
from raysearch.core.formatting import count
from raysearch.errors import UserError, redacted
from raysearch.ledger.ledger import Ledger
from raysearch.ledger.locks import held, is_held
from raysearch.ledger.table import now
from raysearch.recovery.record import recoveries_of
from raysearch.recovery.refine import recorded_refinement
from raysearch.searching.record import SEARCHES, SearchRecord, note_mlflow
from raysearch.searching.result import SearchResult
from raysearch.studies.collect import collect, has_ended
from raysearch.studies.record import STUDIES, CellRecord, StudyRecord
from raysearch.studies.spec import cell_labels
from raysearch.tracking.mlflow.assessments import record_answers, record_assessments, record_recovery
from raysearch.tracking.mlflow.client import attempt, cause_of, quiet
from raysearch.tracking.mlflow.study import begin_study, end_failed, open_runs, record_report
from raysearch.tracking.options import Store, TrackingOptions


@dataclass(frozen=True)
class SyncedSearch:
    """A search that MLflow has in full; it had lacked `missing` of the trials."""

    search_id: str
    mlflow_run_id: str
    trials: int
    missing: int

    @property
    def searches(self) -> tuple[SyncedSearch, ...]:
        """Itself, as of a study."""
        return (self,)

    @property
    def left_out(self) -> tuple[str, ...]:
        """The parts that there is nothing to write of yet, in words."""
        return ()


@dataclass(frozen=True)
class SyncedStudy:
    """A study of which MLflow has all that is found: by its searches, and in its report if that is written.

    `unfinished` are the ids of the searches that have found nothing, or that a command repeats just now.
    """

    study_id: str
    mlflow_run_id: str
    searches: tuple[SyncedSearch, ...]
    unfinished: tuple[str, ...]
    report: bool

    @property
    def left_out(self) -> tuple[str, ...]:
        """The parts that there is nothing to write of yet, in words."""
        searches = count(len(self.unfinished), "search has", "searches have")
        unfinished = f"{searches} not ended yet; the study's command goes on with that, and records it"
        report = f"its report is not written yet; raysearch report {self.study_id} does that, and records it"
        return (*([unfinished] if self.unfinished else []), *([] if self.report else [report]))


def sync(record: SearchRecord | StudyRecord, ledger: Ledger, tracking: TrackingOptions) -> SyncedSearch | SyncedStudy:
    """Write what MLflow lacks of a search; or of a study: its run, its searches filed under that, a written report.

    Where that is stands in its record from now on.

    Raises:
        UserError: A search has not come to its end, another process runs it, or MLflow cannot be written to.
    """
    tracking.store.check()
    if isinstance(record, SearchRecord):
        return _sync_search(record, ledger, tracking)
    return _sync_study(record, ledger, tracking)


def mend(study: StudyRecord, ledger: Ledger, tracking: TrackingOptions, warn: Callable[[str], None]) -> None:
    """Write what MLflow lacks of the searches of a study that none works on: one was killed while it recorded.

    The runs of those whose process died end as failed.
    """
    parent = study.mlflow_run_id
    if tracking.type == "none" or parent is None:
        return
    try:
        running = attempt(lambda: open_runs(tracking.store, parent))
        run_ids = {run.data.tags["raysearch.search_id"]: run.info.run_id for run in running}
        known = SEARCHES.some(ledger, [cell.search_id for cell in study.cells])
        for cell in study.cells:
            record = known.get(cell.search_id)
            if record is None or is_held(ledger, record.search_id):
                continue
            if record.state == "failed":
                if record.search_id in run_ids:
                    attempt(partial(end_failed, tracking.store, run_ids[record.search_id], record.failure or ""))
            elif record.result is not None and record.mlflow_run_id in {None, *run_ids.values()}:
                _sync_search(record, ledger, tracking, cell, parent)
    except Exception as error:  # recording never stops a study, whatever MLflow, a disk or a network throws
        warn(
            f"what MLflow lacks of the study is not written ({cause_of(error)}); later: raysearch sync {study.study_id}"
        )


def _sync_search(
    record: SearchRecord,
    ledger: Ledger,
    tracking: TrackingOptions,
    cell: CellRecord | None = None,
    parent: str = "",
) -> SyncedSearch:
    """Write what MLflow lacks of a search, as the cell of a study and under its id at MLflow where there is one.

    A cell that another process writes just now is waited for.
    """
    with held(ledger, record.search_id, "SEARCH", wait=cell is not None):  # two would write the same trials
        if record.result is None:
            raise UserError(
                f"SEARCH={record.search_id} is {record.state}, so there is nothing to sync yet; raysearch resume "
                f"{record.search_id} goes on with it, and records it"
            )
        result = record.result
        if cell is not None:
            result = replace(result, labels=cell_labels(cell, record.config["remove"], cell.seed), parent=parent)
        with _writing(tracking):
            synced = _write_search(tracking, result)
            _write_assessments(tracking.store, synced.mlflow_run_id, record, ledger)
            if cell is not None:
                record_assessments(tracking.store, {synced.mlflow_run_id: cell.named})
        note_mlflow(ledger, record.search_id, synced.mlflow_run_id, tracking=_section(record.config, tracking))
        return synced


def _write_assessments(store: Store, run_id: str, record: SearchRecord, ledger: Ledger) -> None:
    """Write what the ledger has of a search's mask besides the search: numbers, answers and recoveries."""
    record_assessments(store, {run_id: recorded_assessments(ledger, record)})
    record_answers(store, {run_id: recorded_answers(ledger, record)})
    result = record.found
    masks = {trial.mask for trial in result.trials} | {result.mask}
    for one in recoveries_of(ledger, result.fingerprints["model"], masks):
        if one.search_id == record.search_id:
            record_recovery(store, run_id, *one.told)
    for recovered in recorded_refinement(ledger, record):
        record_recovery(store, run_id, *recovered)


def _write_search(tracking: TrackingOptions, result: SearchResult) -> SyncedSearch:
    """Tell a search again as it was, each event at its own time."""
    from raysearch.tracking.mlflow.writer import MlflowWriter

    at = int(1000 * result.began)
    writer = MlflowWriter(tracking, result, at, 0.0)
    writer.take_up()
    for trials, summary in result.by_round:
        at = int(1000 * (result.began + summary.seconds))
        for trial in trials:
            writer.trial(trial, at)
        writer.round_done(summary, at)
    writer.finish(result, None, int(1000 * result.ended))
    return SyncedSearch(result.search_id, writer.run_id, len(result.trials), writer.written)


def _sync_study(study: StudyRecord, ledger: Ledger, tracking: TrackingOptions) -> SyncedStudy:
    with _writing(tracking):
        parent = begin_study(tracking.store, tracking.experiment, study.study_id, study.config, reopen=False)
    config = {**study.config, "tracking": _section(study.config, tracking)}
    if (parent, config) != (study.mlflow_run_id, study.config):
        STUDIES.change(  # a command may have added to it by now
            ledger,
            study.study_id,
            lambda found: replace(found or study, config=config, mlflow_run_id=parent, updated=now()),
        )
    known = SEARCHES.some(ledger, [cell.search_id for cell in study.cells])
    found = {name: one for name, one in known.items() if one.result is not None and not is_held(ledger, name)}
    searches = tuple(
        _sync_search(record, ledger, tracking, cell, parent)
        for cell in study.cells
        if (record := found.get(cell.search_id))
    )
    report = tracking.folder / "reports" / study.study_id
    files = sorted(report.iterdir()) if report.is_dir() else []
    results = collect(study, ledger, tracking.link)
    ended = has_ended(results, ledger)
    if files or ended:
        with _writing(tracking):
            record_report(tracking.store, parent, results.totals, files, ended)
    unfinished = tuple(cell.search_id for cell in study.cells if cell.search_id not in found)
    return SyncedStudy(study.study_id, parent, searches, unfinished, bool(files))


def _section(config: Mapping[str, Any], tracking: TrackingOptions) -> dict[str, Any]:
    """Return the section ``tracking`` of a configuration, as it is now."""
    given = {key: getattr(tracking, key) for key in ("type", "uri", "experiment", "max_child_runs")}
    section: dict[str, Any] = redacted({**config["tracking"], **given})
    return section


@contextmanager
def _writing(tracking: TrackingOptions) -> Iterator[None]:
    """Refuse a place that cannot be written to."""
    try:
        quiet()
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"tracking.uri={tracking.store.shown} cannot be written to ({cause_of(error)}); sync again once it can be, "
            "or name another with tracking.uri=…"
        ) from error
