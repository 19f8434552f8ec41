"""Which tracker a search or a study is recorded by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from raysearch.errors import UserError
from raysearch.search.observer import Tracker
from raysearch.tracking.store import Store


@dataclass(frozen=True)
class TrackingOptions:
    """Where searches and studies are recorded for people to look at.

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
        Store.locate(self.uri, self.folder)
        if not self.experiment.strip():
            raise UserError(f"tracking.experiment={self.experiment} is no name; give one, such as raysearch")

    @property
    def is_embedded(self) -> bool:
        """Whether ``raysearch ui`` on the store's folder shows the search."""
        return self.type == "mlflow" and self.uri is None

    def link(self, run_id: str | None) -> str | None:
        """Return the address of a run's page, on its server or that of ``raysearch ui``; None without a run."""
        if run_id is None or self.type == "none":
            return None
        return f"{self.store.page}/#/runs/{run_id}"

    @property
    def store(self) -> Store:
        """Where MLflow keeps runs."""
        return Store.locate(self.uri, self.folder)

    def elsewhere(self) -> TrackingOptions:
        """Return the same place, for a process in any folder."""
        return replace(self, folder=self.folder.resolve())

    def open(self, warn: Callable[[str], None]) -> Tracker:
        """Make the tracker; `warn` gets its troubles, each in a sentence."""
        if self.type == "none":
            return Tracker()
        from raysearch.tracking.mlflow.tracker import MlflowTracker  # brings along what other searches do not use

        return MlflowTracker(self.uri, self.experiment, self.folder, warn, ledger=self.ledger)
