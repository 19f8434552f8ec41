"""Writes to MLflow what it lacks, from the ledger alone: a search, or a study with all that it found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from raysearch.assessment.recorded import told_assessments
from raysearch.core.formatting import count
from raysearch.errors import UserError, redacted
from raysearch.ledger.ledger import Ledger
from raysearch.ledger.table import now
from raysearch.search.record import SEARCHES, SearchRecord, note_mlflow
from raysearch.study.collect import collect, totals_of
from raysearch.study.record import STUDIES, CellRecord, StudyRecord
from raysearch.tracking.options import TrackingOptions
from raysearch.tracking.sync import record_report, record_search, record_study


@dataclass(frozen=True)
class SyncedRun:
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
    def searches(self) -> tuple[SyncedRun, ...]:
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
    searches: tuple[SyncedRun, ...]
    unfinished: tuple[str, ...]
    report: bool

    @property
    def left_out(self) -> tuple[str, ...]:
        """What there was nothing to write of, in words."""
        searches = count(len(self.unfinished), "search has", "searches have")
        unfinished = f"{searches} found nothing yet; the study's command goes on with that, and records it"
        report = f"its report is not written yet; raysearch report {self.study_id} does that, and records it"
        return (*([unfinished] if self.unfinished else []), *([] if self.report else [report]))


def sync(record: SearchRecord | StudyRecord, ledger: Ledger, tracking: TrackingOptions) -> SyncedRun | SyncedStudy:
    """Write what MLflow lacks of a search or a study.

    Args:
        record: Its record.
        ledger: Where that is.
        tracking: Where to write; it stands in the record from now on.

    Raises:
        UserError: As `sync_run` and `sync_study`.
    """
    tracking.store.check()
    if isinstance(record, SearchRecord):
        return sync_run(record, ledger, tracking)
    return sync_study(record, ledger, tracking, tracking.folder / "reports" / record.study_id)


def sync_run(
    run: SearchRecord,
    ledger: Ledger,
    tracking: TrackingOptions,
    labels: Mapping[str, str] | None = None,
    parent: str = "",
) -> SyncedRun:
    """Writes what MLflow lacks of a search.

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
            f"{run.search_id} goes on "
            "with it, and records it"
        )
    result = run.result if labels is None else replace(run.result, labels=labels, parent=parent)
    written = record_search(tracking, result, told_assessments(ledger, run))
    note_mlflow(ledger, run.search_id, written.mlflow_run_id, _section(run.config, tracking))
    return SyncedRun(run.search_id, written.mlflow_run_id, written.trials, written.missing)


def sync_study(study: StudyRecord, ledger: Ledger, tracking: TrackingOptions, report: Path) -> SyncedStudy:
    """Writes what MLflow lacks of a study: its run, its searches filed under that, and the report if there is one.

    Args:
        study: Its record.
        ledger: Where that is.
        tracking: Where to write; it stands in the records from now on.
        report: The folder that its report may be in.

    Raises:
        UserError: MLflow cannot be written to.
    """
    parent = record_study(tracking, study.study_id, study.config)
    config = {**study.config, "tracking": _section(study.config, tracking)}
    if (parent, config) != (study.mlflow_run_id, study.config):
        STUDIES.write(ledger, replace(study, config=config, mlflow_run_id=parent, updated=now()))
    runs = SEARCHES.some(ledger, [cell.search_id for cell in study.cells])
    found = {
        cell.search_id: run for cell in study.cells if (run := runs.get(cell.search_id)) and run.result is not None
    }
    searches = tuple(
        sync_run(found[cell.search_id], ledger, tracking, _labels(cell, found[cell.search_id]), parent)
        for cell in study.cells
        if cell.search_id in found
    )
    files = sorted(report.iterdir()) if report.is_dir() else []
    if files:
        metrics = totals_of(collect(study, ledger, tracking.link))
        record_report(tracking, parent, metrics, files)
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
