"""A study's report: collected, written, and put with the study's MLflow run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from raysearch.ledger.ledger import Ledger
from raysearch.ledger.studies import StudyRecord
from raysearch.reporting.write import write_report
from raysearch.study.collect import collect
from raysearch.study.result import StudyResults
from raysearch.tracking.options import TrackingOptions


def report_study(
    study: StudyRecord, ledger: Ledger, tracking: TrackingOptions, out: Path, warn: Callable[[str], None]
) -> tuple[StudyResults, list[Path]]:
    """Writes the report of a study, finished or not, and logs it to MLflow.

    Args:
        study: Its record.
        ledger: Where its searches' records are.
        tracking: Where it was recorded.
        out: The folder to write.
        warn: Told, in one sentence, if MLflow cannot be written to.

    Returns:
        What the study found, and the files, the page first.

    Raises:
        UserError: The folder cannot be written to.
    """
    results = collect(study, ledger, tracking.link)
    files = write_report(results, out)
    tops = sorted({out / file.relative_to(out).parts[0] for file in files})
    tracking.end_study(study.mlflow_run_id, report_metrics(results), tops, warn)
    return results, files


def report_metrics(results: StudyResults) -> dict[str, float]:
    """The numbers of a study as a whole, by the names of MLflow's metrics."""
    return {
        **{f"layer_forwards_{kind}": value for kind, value in results.layer_forwards.items()},
        "searches": len(results.cells),
        "searches_done": sum(cell.outcome is not None for cell in results.cells),
    }
