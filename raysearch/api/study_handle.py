"""The handle of a recorded study, and its report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysearch.api.arguments import all_overrides, job_config, observer_or_default
from raysearch.api.location import StoreLocation
from raysearch.api.tracked import recorded_tracking, tracked_observer, tracking_to_sync
from raysearch.core.paths import PathLike, as_folder, as_name
from raysearch.searching.observer import Observer

if TYPE_CHECKING:
    from raysearch.ledger.ledger import Ledger
    from raysearch.searching.spec import SearchSpec
    from raysearch.studies.result import StudyResult
    from raysearch.studies.study_record import StudyRecord
    from raysearch.tracking.sync import SyncedStudy


@dataclass(frozen=True)
class StudyReport:
    """The report of a study.

    Args:
        result: The results of the study when the report was written.
        files: Its files. The page is the first; ``cells.csv`` is a table for pandas with a row per search.
    """

    result: StudyResult
    files: Sequence[Path]

    @property
    def page(self) -> Path:
        """The page of the report."""
        return self.files[0]


@dataclass(frozen=True)
class Study:
    """A recorded study. `raysearch.study` and `Store.study` return it.

    A handle keeps no file open: each method opens the ledger of the store, and closes it. So a handle can be pickled,
    and several processes may have handles on one store.

    Args:
        location: The store that contains it.
        study_id: Its id.
        own_report: The report that the call wrote which returned this handle; None if it wrote none.
    """

    location: StoreLocation
    study_id: str
    own_report: StudyReport | None = field(default=None, repr=False, compare=False)

    @property
    def record(self) -> StudyRecord:
        """The record of the study: its configuration, searches and assessed numbers.

        Raises:
            UserError: The ledger does not contain the study, or cannot be read.
        """
        with self._opened() as (_, record):
            return record

    @property
    def result(self) -> StudyResult:
        """The results: of the call that returned this handle, or else the present ones. A failed search has its cause.

        Raises:
            UserError: The ledger does not contain the study, or cannot be read.
        """
        from raysearch.studies.collect import collect

        if self.own_report is not None:
            return self.own_report.result
        with self._opened() as (ledger, record):
            return collect(record, ledger, recorded_tracking(record.config, self.location, ledger).link)

    @property
    def files(self) -> Sequence[Path]:
        """The files of the report that the call wrote which returned this handle, the page first; else empty."""
        return () if self.own_report is None else self.own_report.files

    def report(
        self, out: PathLike | None = None, *, mlflow_url: str | None = None, observer: Observer | None = None
    ) -> StudyReport:
        """Write a report of the present results: a page, Markdown, tables and figures. Nothing is computed.

        Args:
            out: The folder to write; None for ``reports/<study>`` in the store.
            mlflow_url: MLflow's address for readers of the report: ``http://host:5000``. None for the address that the
                study recorded to, or that ``raysearch ui`` serves the store at.
            observer: Receives the progress.

        Returns:
            The collected results of the study, and the files that were written.

        Raises:
            UserError: The folder cannot be written, or the address is none.
        """
        observer = observer_or_default(observer)
        with self._opened() as (ledger, record):
            return write_study_report(self.location, record, ledger, out, observer, mlflow_url)

    def assess(
        self,
        *overrides: str,
        config_dir: PathLike | None = None,
        out: PathLike | None = None,
        observer: Observer | None = None,
        **values: Any,
    ) -> StudyReport:
        """Measure the pruned model of each search, and the dense models; then write the report again.

        Numbers that the ledger contains are not computed again.

        Args:
            *overrides: ``key=value`` texts.
            config_dir: A folder of your own YAML files, laid out like ``conf/``.
            out: The folder of the report; None for ``reports/<study>`` in the store.
            observer: Receives the progress.
            **values: The same keys as keyword arguments.

        Returns:
            The collected results of the study with the new numbers, and the files of the report.

        Raises:
            UserError: No search has found a mask, a model has changed since its search, or a task or its data is
                missing or does not fit a model.
            EvaluationError: An evaluation failed.
        """
        from raysearch.configuration import build
        from raysearch.studies.assess import assess_study

        observer = observer_or_default(observer)
        folder = None if out is None else as_folder("--out", out)  # refused now, not after hours
        new_overrides = all_overrides(overrides, values)
        with self._opened() as (ledger, record):
            config = job_config("assess", new_overrides, record.config, config_dir)
            assessment = build.assess_spec(config)
            changes = {**self.location.current_paths(record.config, ledger), "cluster": config["cluster"]}

            def build_search(recorded_config: Mapping[str, Any]) -> SearchSpec:
                return build.recorded_search({**recorded_config, **changes})

            tracking = recorded_tracking(record.config, self.location, ledger)
            assess_study(record, ledger, assessment, build_search, tracked_observer(tracking, observer))
        return self.report(folder, observer=observer)

    def sync(self, *overrides: str, **values: Any) -> SyncedStudy:
        """Upload the missing runs and metrics of the study from the ledger to MLflow. Nothing is written twice.

        Args:
            *overrides: ``tracking.key=value`` texts, for another place than the recorded one.
            **values: The same keys as keyword arguments.

        Returns:
            The runs, and how many trials were missing.

        Raises:
            UserError: MLflow cannot be written to.
        """
        from raysearch.tracking.sync import sync_study

        with self._opened() as (ledger, record):
            new_overrides = all_overrides(overrides, values)
            name = f"STUDY={self.study_id}"
            tracking = tracking_to_sync(name, record.config, new_overrides, self.location, ledger)
            return sync_study(record, ledger, tracking)

    @contextmanager
    def _opened(self) -> Iterator[tuple[Ledger, StudyRecord]]:
        """Open the ledger, and read the record of the study."""
        from raysearch.studies.study_record import STUDIES

        with self.location.opened_ledger() as ledger:
            yield ledger, STUDIES.find(ledger, self.study_id)


def write_study_report(
    location: StoreLocation,
    record: StudyRecord,
    ledger: Ledger,
    out: PathLike | None,
    observer: Observer,
    mlflow_url: str | None = None,
) -> StudyReport:
    """Write the report of a study, and record it.

    Args:
        location: The store that contains the study.
        record: The study.
        ledger: The open ledger of the store.
        out: The folder to write; None for ``reports/<study>`` in the store.
        observer: Receives the progress.
        mlflow_url: MLflow's address for readers of the report; None for the recorded one.

    Returns:
        The collected results of the study, and the files that were written.

    Raises:
        UserError: The folder cannot be written, or the address is none.
    """
    from raysearch.reporting.write import write_report
    from raysearch.searching.events import StudyReported
    from raysearch.studies.collect import collect, has_ended

    tracking = recorded_tracking(record.config, location, ledger)
    default_folder = tracking.folder / "reports" / as_name("STUDY", record.study_id)
    folder = default_folder if out is None else as_folder("--out", out)
    result = collect(record, ledger, lambda run_id: tracking.link(run_id, mlflow_url))
    files = write_report(result, folder)
    top_entries = sorted({folder / file.relative_to(folder).parts[0] for file in files})
    ended = has_ended(result, ledger)
    event = StudyReported(record.mlflow_run_id, result.totals, top_entries, ended)
    tracked_observer(tracking, observer).on_event(event)
    return StudyReport(result, files)
