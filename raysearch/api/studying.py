"""Studies, their reports and their records, from Python."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysearch.construct import checked
from raysearch.paths import PathLike, as_folder, as_name, as_path, ledger_path

if TYPE_CHECKING:
    from raysearch.reporting.results import StudyResults
    from raysearch.studies.running import StudyObserver
    from raysearch.studies.syncing import SyncedRun, SyncedStudy
from raysearch.api.observing import observer_or


def study(
    *overrides: str,
    config_dir: PathLike | None = None,
    out: PathLike | None = None,
    observer: StudyObserver | None = None,
    **values: Any,
) -> tuple[StudyResults, list[Path]]:
    """Runs a grid of searches and writes its report; the same call again goes on where it was stopped.

        study(study="two_calibrations", assess="offline")
        study("study.grid.searcher=[one_shot,greedy]", "study.grid.remove=[3,5]", data={"samples": 8})

    Args:
        *overrides: ``key=value`` words, as on the command line.
        config_dir: A folder of your own YAML files, laid out like ``conf/``.
        out: The folder of the report; None for ``reports/<study>`` in the store.
        observer: Watches the study; None for silence.
        **values: The same keys as arguments.

    Returns:
        What the study found, and the files of the report, the page first. A search that fails does not stop the
        others: its cause stands in the results.

    Raises:
        UserError: A key or value is not understood, or a search does not fit its model, its data or the machine.
        EvaluationError: What was found cannot be assessed.
    """
    from raysearch import build
    from raysearch.overrides import as_overrides
    from raysearch.studies.running import SilentStudyObserver, run_study

    spec = build.study_spec([*overrides, *as_overrides(values)], config_dir)
    out = None if out is None else as_folder("--out", out)
    watching = observer_or(observer, SilentStudyObserver())
    record = run_study(spec, watching)
    return report(record.study_id, store=spec.tracking.folder, ledger=spec.ledger, out=out, warn=watching.warn)


def report(
    study: str = "latest",
    *,
    store: PathLike = "mlruns",
    ledger: PathLike | None = None,
    out: PathLike | None = None,
    warn: Callable[[str], None] = lambda message: None,
) -> tuple[StudyResults, list[Path]]:
    """Writes the report of a study as far as it is done: a page, Markdown, tables and figures; nothing is computed.

    Args:
        study: A study's id, the start of one, its MLflow run id, or ``latest``.
        store: The folder that its searches wrote to.
        ledger: The ledger, if it is not in the store.
        out: The folder to write; None for ``reports/<study>`` in the store.
        warn: Told, in one sentence, if MLflow cannot be written to.

    Returns:
        What the study found, and the files, the page first.

    Raises:
        UserError: There is no such study, or the folder cannot be written to.
    """
    from raysearch import build
    from raysearch.evaluation.ledger import opened
    from raysearch.evaluation.studies import find_study
    from raysearch.studies.reporting import report_study

    store, study = as_path("--store", store), checked(str, "study", study)
    with opened(ledger_path(store, ledger)) as found:
        record = find_study(found, study)
        tracking = build.tracking_options(record.config, store, found.path)
        folder = store / "reports" / as_name("STUDY", record.study_id) if out is None else as_folder("--out", out)
        return report_study(record, found, tracking, folder, warn)


def sync(
    run: str = "latest", *overrides: str, store: PathLike = "mlruns", ledger: PathLike | None = None
) -> SyncedRun | SyncedStudy:
    """Writes to MLflow what it lacks of a search or a study, from the ledger alone; twice writes nothing twice.

        sync("latest")
        sync("greedy-m5-3fa2c1d0", "tracking.uri=http://127.0.0.1:5000")

    Args:
        run: A run or study id, the start of one, an MLflow run id, or ``latest`` for the last search.
        *overrides: ``tracking.key=value`` words, for another place than the one on record.
        store: The folder that searches wrote to.
        ledger: The ledger, if it is not in the store.

    Raises:
        UserError: There is nothing of that name, it has found nothing yet, or MLflow cannot be written to.
    """
    from raysearch import build, config
    from raysearch.evaluation.ledger import opened
    from raysearch.studies.syncing import sync

    store, run = as_path("--store", store), checked(str, "run", run)
    with opened(ledger_path(store, ledger)) as found:
        return sync(
            run, found, lambda before: build.tracking_options(config.recorded(before, overrides), store, found.path)
        )
