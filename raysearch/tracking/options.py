"""Which tracker a search writes to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from raysearch.core.paths import options_for
from raysearch.errors import UserError
from raysearch.search.result import NullTracker, Tracker
from raysearch.tracking.mlflow.contact import attempt, cause_of
from raysearch.tracking.store import Store

_T = TypeVar("_T")


@dataclass(frozen=True)
class TrackingOptions:
    """Where a search is recorded for people to look at.

    Args:
        type: ``mlflow``, or ``none`` to record nothing (the ledger still does).
        uri: An MLflow tracking URI; None for the embedded store.
        experiment: The MLflow experiment that searches are filed under.
        folder: Holds the embedded store and its artifacts.
        ledger: Where searches are on record; None for the folder's own.

    Raises:
        UserError: MLflow knows no addresses of that kind, or no such experiments.
    """

    type: Literal["mlflow", "none"]
    uri: str | None
    experiment: str
    folder: Path
    ledger: Path | None = None

    def __post_init__(self) -> None:
        """Checks address and name."""
        Store.locate(self.uri, self.folder)
        if not self.experiment.strip():
            raise UserError(f"tracking.experiment={self.experiment} is no name; give one, such as raysearch")

    @property
    def is_embedded(self) -> bool:
        """Whether ``raysearch ui`` on the store's folder shows the search."""
        return self.type == "mlflow" and self.uri is None

    def begin_study(self, study_id: str, config: Mapping[str, Any], warn: Callable[[str], None]) -> str | None:
        """Makes, or takes up, the run that the searches of a study are filed under; None where nothing is recorded."""

        def begin() -> str:
            from raysearch.tracking.mlflow.study import begin_study

            return begin_study(self.store, self.experiment, study_id, config)

        later = f"it goes on without; later: raysearch sync {study_id}{options_for(self.folder, self.ledger)}"
        return None if self.type == "none" else self._attempt("the study is", begin, later, warn)

    def adopt(self, parent: str | None, searches: Mapping[str, Mapping[str, str]], warn: Callable[[str], None]) -> None:
        """Files searches under a study that had been recorded before it; nothing where it is not recorded."""

        def file_searches() -> None:
            from raysearch.tracking.mlflow.study import adopt

            adopt(self.store, parent or "", searches)

        if parent is not None and searches and self.type == "mlflow":
            later = "it goes on without; later: raysearch sync, with the study's id"
            self._attempt("what the study had found before is", file_searches, later, warn)

    def end_study(
        self, run_id: str | None, metrics: Mapping[str, float], files: Sequence[Path], warn: Callable[[str], None]
    ) -> None:
        """Puts a study's numbers and files on its run, and ends that; nothing where there is none."""

        def end() -> None:
            from raysearch.tracking.mlflow.study import end_study

            end_study(self.store, run_id or "", metrics, files)

        if run_id is not None and self.type == "mlflow":
            self._attempt("the report is", end, "later: raysearch sync, with the study's id", warn)

    def record_assessments(
        self, metrics: Mapping[str | None, Mapping[str, float]], warn: Callable[[str], None]
    ) -> None:
        """Puts what masks were assessed at on their searches' runs, by MLflow's ids; those without one are left out."""
        from raysearch.tracking.mlflow.assessments import record_assessments

        recorded = {run_id: values for run_id, values in metrics.items() if run_id is not None}
        if recorded and self.type == "mlflow":
            later = "later: raysearch sync, or the same command again"
            self._attempt("the assessment is", lambda: record_assessments(self.store, recorded), later, warn)

    def _attempt(self, subject: str, work: Callable[[], _T], later: str, warn: Callable[[str], None]) -> _T | None:
        """What the work returns; None, and one sentence, if it fails or takes too long."""
        try:
            return attempt(work)
        except Exception as error:  # a tracker never stops anything, whatever MLflow, a disk or a network throws
            warn(f"{subject} not recorded in MLflow at {self.store.shown} ({cause_of(error)}); {later}")
            return None

    def link(self, run_id: str | None) -> str | None:
        """Where a run is to be seen: on its server, or with ``raysearch ui``; None where there is none."""
        if run_id is None or self.type == "none":
            return None
        return f"{self.store.page}/#/runs/{run_id}"

    @property
    def store(self) -> Store:
        """Where MLflow keeps runs."""
        return Store.locate(self.uri, self.folder)

    def open(self, warn: Callable[[str], None]) -> Tracker:
        """Makes the tracker; `warn` gets its one-line troubles."""
        if self.type == "none":
            return NullTracker()
        from raysearch.tracking.mlflow.tracker import MlflowTracker  # keeps mlflow out of searches that do not use it

        return MlflowTracker(self.uri, self.experiment, self.folder, warn, ledger=self.ledger)
