"""Which tracker a search writes to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from raysearch.tracking.base import NullTracker, Tracker
from raysearch.tracking.store import Store


@dataclass(frozen=True)
class TrackingOptions:
    """Where a search is recorded for people to look at.

    Args:
        type: ``mlflow``, or ``none`` to record nothing (the ledger still does).
        uri: An MLflow tracking URI; None for the embedded store.
        experiment: The MLflow experiment that searches are filed under.
        folder: Holds the embedded store and its artifacts.
    """

    type: Literal["mlflow", "none"]
    uri: str | None
    experiment: str
    folder: Path

    @property
    def is_embedded(self) -> bool:
        """Whether ``raysearch ui`` on the store's folder shows the search."""
        return self.type == "mlflow" and self.uri is None

    def begin_study(self, study_id: str, config: Mapping[str, Any], warn: Callable[[str], None]) -> str | None:
        """Makes, or takes up, the run that the searches of a study are filed under; None where nothing is recorded."""
        if self.type == "none":
            return None
        from raysearch.tracking.mlflow_study import begin_study

        return begin_study(self.store, self.experiment, study_id, config, warn)

    def adopt(self, parent: str | None, searches: Mapping[str, Mapping[str, str]], warn: Callable[[str], None]) -> None:
        """Files searches under a study that had been recorded before it; nothing where it is not recorded."""
        if parent is not None and searches and self.type == "mlflow":
            from raysearch.tracking.mlflow_study import adopt

            adopt(self.store, parent, searches, warn)

    def end_study(
        self, run_id: str | None, metrics: Mapping[str, float], files: Sequence[Path], warn: Callable[[str], None]
    ) -> None:
        """Puts a study's numbers and files on its run, and ends that; nothing where there is none."""
        if run_id is not None and self.type == "mlflow":
            from raysearch.tracking.mlflow_study import end_study

            end_study(self.store, run_id, metrics, files, warn)

    def record_assessment(self, run_id: str | None, metrics: Mapping[str, float], warn: Callable[[str], None]) -> None:
        """Puts what a search's mask was assessed at on the search's run; nothing where there is none."""
        if run_id is not None and self.type == "mlflow":
            from raysearch.tracking.assessed import record_assessment

            record_assessment(self.store, run_id, metrics, warn)

    def link(self, run_id: str | None) -> str | None:
        """Where a run is to be seen: on its server, or with ``raysearch ui``; None where there is none."""
        if run_id is None or self.type == "none":
            return None
        server = self.store.uri.rstrip("/") if self.store.is_server else "http://127.0.0.1:5000"
        return f"{server}/#/runs/{run_id}"

    @property
    def store(self) -> Store:
        """Where MLflow keeps runs."""
        return Store.locate(self.uri, self.folder)

    def open(self, warn: Callable[[str], None]) -> Tracker:
        """Makes the tracker; `warn` gets its one-line troubles."""
        if self.type == "none":
            return NullTracker()
        from raysearch.tracking.mlflow_tracker import MlflowTracker  # keeps mlflow out of searches that do not use it

        return MlflowTracker(self.uri, self.experiment, self.folder, warn)
