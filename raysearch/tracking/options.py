"""Which tracker a search writes to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from raysearch.tracking.base import NullTracker, Tracker


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

    def open(self, warn: Callable[[str], None]) -> Tracker:
        """Makes the tracker; `warn` gets its one-line troubles."""
        if self.type == "none":
            return NullTracker()
        from raysearch.tracking.mlflow_tracker import MlflowTracker  # keeps mlflow out of searches that do not use it

        return MlflowTracker(self.uri, self.experiment, self.folder, warn)
