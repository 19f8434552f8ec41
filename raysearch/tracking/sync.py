"""Writes to MLflow what it lacks, from the ledger alone: a search, or a study with all that it found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from raysearch.assessment.recorded import recorded_assessments
from raysearch.core.formatting import count
from raysearch.errors import UserError, redacted
from raysearch.ledger.ledger import Ledger
from raysearch.ledger.table import now
from raysearch.search.record import SEARCHES, SearchRecord, note_mlflow
from raysearch.search.result import SearchResult
from raysearch.study.collect import collect, totals_of
from raysearch.study.record import STUDIES, CellRecord, StudyRecord
from raysearch.tracking.mlflow.contact import cause_of, quiet
from raysearch.tracking.options import TrackingOptions

_T = TypeVar("_T")


@dataclass(frozen=True)
class SyncedSearch:
    """A search that MLflow has in full.

    Args:
        search_id: The search.
        mlflow_run_id: MLflow's id of it.
        trials: How many it has.
        missing: How many of them MLflow had lacked.
    """

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
        """What there was nothing to write of, in words."""
        return ()


@dataclass(frozen=True)
class SyncedStudy:
    """A study of which MLflow has all that is found.

    Args:
        study_id: The study.
        mlflow_run_id: MLflow's id of it.
        searches: Those of its searches that have found something.
        unfinished: The run ids of the others.
        report: Whether its report, of which it takes numbers and files, is written.
    """

    study_id: str
    mlflow_run_id: str
    searches: tuple[SyncedSearch, ...]
    unfinished: tuple[str, ...]
    report: bool

    @property
    def left_out(self) -> tuple[str, ...]:
        """What there was nothing to write of, in words."""
        searches = count(len(self.unfinished), "search has", "searches have")
        unfinished = f"{searches} found nothing yet; the study's command goes on with that, and records it"
        report = f"its report is not written yet; raysearch report {self.study_id} does that, and records it"
        return (*([unfinished] if self.unfinished else []), *([] if self.report else [report]))


def sync(record: SearchRecord | StudyRecord, ledger: Ledger, tracking: TrackingOptions) -> SyncedSearch | SyncedStudy:
    """Write what MLflow lacks of a search or a study.

    Args:
        record: Its record.
        ledger: Where that is.
        tracking: Where to write; it stands in the record from now on.

    Raises:
        UserError: As `sync_search` and `sync_study`.
    """
    tracking.store.check()
    if isinstance(record, SearchRecord):
        return sync_search(record, ledger, tracking)
    return sync_study(record, ledger, tracking, tracking.folder / "reports" / record.study_id)


def sync_search(
    run: SearchRecord,
    ledger: Ledger,
    tracking: TrackingOptions,
    labels: Mapping[str, str] | None = None,
    parent: str = "",
) -> SyncedSearch:
    """Write what MLflow lacks of a search.

    Args:
        run: Its record.
        ledger: Where that is.
        tracking: Where to write; it stands in the record from now on.
        labels: What the search is called in a study; None for what it was called when it ran.
        parent: MLflow's id of that study.

    Raises:
        UserError: It has not come to its end, or MLflow cannot be written to.
    """
    if run.result is None:
        raise UserError(
            f"SEARCH={run.search_id} is {run.state}, so there is nothing to sync yet; raysearch resume "
            f"{run.search_id} goes on with it, and records it"
        )
    result = run.result if labels is None else replace(run.result, labels=labels, parent=parent)
    assessed = recorded_assessments(ledger, run)
    synced = _written(tracking, lambda: _write_search(tracking, result, assessed))
    note_mlflow(ledger, run.search_id, synced.mlflow_run_id, _section(run.config, tracking))
    return synced


def _write_search(tracking: TrackingOptions, result: SearchResult, assessed: Mapping[str, float]) -> SyncedSearch:
    """Tell a search again as it was, each event at its own time."""
    from raysearch.tracking.mlflow.study import record_assessments
    from raysearch.tracking.mlflow.writer import MlflowWriter

    at = int(1000 * result.began)
    writer = MlflowWriter(tracking.store, tracking.experiment, result, at, seconds_before=0.0)
    writer.take_up()
    for trials, summary in result.by_round:
        at = int(1000 * (result.began + summary.seconds))
        for trial in trials:
            writer.trial(trial, at)
        writer.round_done(summary, at)
    writer.finish(result, None, int(1000 * result.ended))
    record_assessments(tracking.store, {writer.run_id: assessed})
    return SyncedSearch(result.search_id, writer.run_id, len(result.trials), writer.written)


def sync_study(study: StudyRecord, ledger: Ledger, tracking: TrackingOptions, report: Path) -> SyncedStudy:
    """Write what MLflow lacks of a study: its run, its searches filed under that, and the report if there is one.

    Args:
        study: Its record.
        ledger: Where that is.
        tracking: Where to write; it stands in the records from now on.
        report: The folder that its report may be in.

    Raises:
        UserError: MLflow cannot be written to.
    """
    parent = _written(tracking, lambda: _begin(tracking, study))
    config = {**study.config, "tracking": _section(study.config, tracking)}
    if (parent, config) != (study.mlflow_run_id, study.config):
        STUDIES.write(ledger, replace(study, config=config, mlflow_run_id=parent, updated=now()))
    runs = SEARCHES.some(ledger, [cell.search_id for cell in study.cells])
    found = {
        cell.search_id: run for cell in study.cells if (run := runs.get(cell.search_id)) and run.result is not None
    }
    searches = tuple(
        sync_search(found[cell.search_id], ledger, tracking, _labels(cell, found[cell.search_id]), parent)
        for cell in study.cells
        if cell.search_id in found
    )
    files = sorted(report.iterdir()) if report.is_dir() else []
    if files:
        totals = totals_of(collect(study, ledger, tracking.link))
        _written(tracking, lambda: _end(tracking, parent, totals, files))
    unfinished = tuple(cell.search_id for cell in study.cells if cell.search_id not in found)
    return SyncedStudy(study.study_id, parent, searches, unfinished, bool(files))


def _labels(cell: CellRecord, run: SearchRecord) -> dict[str, str]:
    """What a search is called in its study, as `Cell.labels`."""
    return {
        "model": cell.model,
        "calibration": cell.calibration,
        "searcher": cell.searcher,
        "remove": str(run.config["remove"]),
        "seed": str(cell.seed),
    }


def _section(config: Mapping[str, Any], tracking: TrackingOptions) -> dict[str, Any]:
    """The section ``tracking`` of a configuration, as it is now."""
    given = {"type": tracking.type, "uri": tracking.uri, "experiment": tracking.experiment}
    section: dict[str, Any] = redacted({**config["tracking"], **given})
    return section


def _begin(tracking: TrackingOptions, study: StudyRecord) -> str:
    """Make a study's run if MLflow has none, and return MLflow's id of it."""
    from raysearch.tracking.mlflow.study import begin_study

    return begin_study(tracking.store, tracking.experiment, study.study_id, study.config, reopen=False)


def _end(tracking: TrackingOptions, run_id: str, totals: Mapping[str, float], files: Sequence[Path]) -> None:
    """Put a report's numbers and files on its study's run, and end that."""
    from raysearch.tracking.mlflow.study import end_study

    end_study(tracking.store, run_id, totals, files)


def _written(tracking: TrackingOptions, write: Callable[[], _T]) -> _T:
    """Return what the work returns; refuse a place that cannot be written to."""
    try:
        with quiet():
            return write()
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"tracking.uri={tracking.store.shown} cannot be written to ({cause_of(error)}); sync again once it can be, "
            "or name another with tracking.uri=…"
        ) from error
