"""Which tracker a search or a study is recorded by."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from raysearch.errors import UserError, redact
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
        max_child_runs: So many trials of a search have runs of their own; the others are rows of its table alone.

    Raises:
        UserError: MLflow knows no addresses of that kind, or no such experiments, or the number is below 0.
    """

    type: Literal["mlflow", "none"]
    uri: str | None
    experiment: str
    folder: Path
    ledger: Path | None = None
    max_child_runs: int = 2000

    def __post_init__(self) -> None:
        Store.locate(self.uri, self.folder)
        if not self.experiment.strip():
            raise UserError(f"tracking.experiment={self.experiment} is no name; give one, such as raysearch")
        if self.max_child_runs < 0:
            raise UserError(f"tracking.max_child_runs={self.max_child_runs} is below 0; use 0 for a table alone")

    def link(self, run_id: str | None, url: str | None = None) -> str | None:
        """Return the address of a run's page, on its server or that of ``raysearch ui``; None without a run.

        Args:
            run_id: The run.
            url: Where people find MLflow, if it is elsewhere for them: ``http://host:5000``.

        Raises:
            UserError: The URL is no address of the web.
        """
        if url is not None and not re.match(r"https?://[^/\s]", url):
            raise UserError(f"--mlflow-url={redact(url)} is no address; give one such as http://host:5000")
        if run_id is None or self.type == "none":
            return None
        return f"{(url or self.store.page).rstrip('/')}/#/runs/{run_id}"

    @property
    def store(self) -> Store:
        """Where MLflow keeps runs."""
        return Store.locate(self.uri, self.folder)

    def elsewhere(self) -> TrackingOptions:
        """Return the same place, for a process in any folder."""
        return replace(self, folder=self.folder.resolve())

    def open(self, warn: Callable[[str], None], show: Callable[[str], None] | None = None) -> Tracker:
        """Make the tracker.

        Args:
            warn: Gets its troubles, each in a sentence.
            show: Gets how far it is, in a line now and then, while it is waited for.
        """
        if self.type == "none":
            return Tracker()
        from raysearch.tracking.mlflow.tracker import MlflowTracker  # brings along what other searches do not use

        return MlflowTracker(
            *(self.uri, self.experiment, self.folder, warn),
            ledger=self.ledger,
            show=show,
            max_child_runs=self.max_child_runs,
        )
