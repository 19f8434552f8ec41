"""Where searches and studies are recorded for people: by which tracker, and in MLflow's embedded store or at a URI."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Literal

from filelock import FileLock
from pydantic import NonNegativeInt

from raysearch.errors import HIDDEN, UserError, did_you_mean, redact

#: What MLflow's addresses begin with, databases with or without ``+driver``; its plugins add to them.
_SCHEMES = {"http", "https", "databricks", "databricks-uc", "uc", "file", "sqlite", "postgresql", "mysql", "mssql"}


@dataclass(frozen=True)
class Store:
    """A place where MLflow keeps runs, by its tracking URI.

    The folder holds the artifacts of every store that is not a server, and the database of the embedded one.
    """

    uri: str
    folder: Path

    @classmethod
    def locate(cls, uri: str | None, folder: Path, argument: str = "tracking.uri") -> Store:
        """Return the store at `uri`, which the user gave as the argument; None for the embedded one.

        Where `uri` is from a record, which keeps no password, that is taken from MLflow's own environment variables.

        Raises:
            UserError: MLflow knows no addresses of that kind, or keeps nothing there.
        """
        folder = folder.expanduser().resolve()
        if uri == "":
            raise UserError(f"{argument}= is empty; give an address, or leave it out")
        scheme, separator, _ = (uri or "").partition("://")
        if separator and scheme.partition("+")[0] not in _SCHEMES:
            known = _SCHEMES | {plugin.name for plugin in entry_points(group="mlflow.tracking_store")}
            if scheme not in known:
                said = f"{argument}={redact(uri or '')} is of a kind that MLflow does not know"
                raise UserError(f"{said}; {did_you_mean(scheme, known)}")
        if re.fullmatch(r"[\w.-]+:\d+(/.*)?", uri or ""):
            raise UserError(f"{argument}={uri} does not say how to speak to that server; use http://{uri}")
        keeps_folders = os.environ.get("MLFLOW_ALLOW_FILE_STORE", "").lower() in ("true", "1")  # as older versions did
        if uri and re.match(r"file:|(?!databricks$|databricks-uc$|uc$)[^:]*$", uri) and not keeps_folders:
            file = Path(re.sub(r"^file:(//)?", "", uri)).expanduser().absolute() / "mlflow.db"
            raise UserError(
                f"{argument}={uri} is a folder, in which MLflow keeps no more runs; use sqlite:///{file}, or http://… "
                "for a server"
            )
        if re.fullmatch(r"sqlite(\+\w+)?:/*(:memory:)?(\?.*)?", uri or ""):
            raise UserError(
                f"{argument}={uri} names no file, and what is written is lost; use sqlite:////path/to/file.db"
            )
        return cls(_with_password(uri) if uri else f"sqlite:///{folder / 'mlflow.db'}", folder)

    @property
    def shown(self) -> str:
        """The URI as it may be shown."""
        return redact(self.uri)

    @property
    def page(self) -> str:
        """Where a browser finds it: its server, or the one of ``raysearch ui``."""
        return re.sub(r"//[^/]*@", "//", self.uri).rstrip("/") if self.is_server else "http://127.0.0.1:5000"

    def check(self) -> None:
        """Refuse an address from a record whose password no environment variable has."""
        if HIDDEN in self.uri:
            raise UserError(
                f"tracking.uri={self.uri} is on record without its password; give it again with tracking.uri=…, or in "
                "MLFLOW_TRACKING_URI"
            )

    @property
    def is_server(self) -> bool:
        """Whether a server answers at the URI, which then decides by itself where artifacts go."""
        return self.uri.startswith(("http:", "https:", "databricks"))

    @property
    def is_embedded(self) -> bool:
        """Whether it is the database in the folder."""
        return self.uri == f"sqlite:///{self.folder / 'mlflow.db'}"

    @property
    def artifacts(self) -> Path:
        """The folder of artifacts; absolute, since MLflow would take a relative one from wherever it runs."""
        return self.folder / "artifacts"

    @property
    def file(self) -> Path | None:
        """The file of a local database; None of another store."""
        return Path(re.sub(r"^sqlite(\+\w+)?:///|\?.*$", "", self.uri)) if self.uri.startswith("sqlite") else None

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other searches out of the embedded store meanwhile: MLflow breaks if two make its tables at once."""
        with ExitStack() as locked:
            if self.is_embedded:
                self.folder.mkdir(parents=True, exist_ok=True)
                locked.enter_context(FileLock(self.folder / "mlflow.lock", fallback_to_soft=False))
            yield


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
        UserError: MLflow knows no addresses of that kind, or no such experiments.
    """

    type: Literal["mlflow", "none"]
    uri: str | None
    experiment: str
    folder: Path
    ledger: Path | None = None
    max_child_runs: NonNegativeInt = 2000

    def __post_init__(self) -> None:
        Store.locate(self.uri, self.folder)
        if not self.experiment.strip():
            raise UserError(f"tracking.experiment={self.experiment} is not a name; give one, such as raysearch")

    def link(self, run_id: str | None, url: str | None = None) -> str | None:
        """Return the address of a run's page, on its server or that of ``raysearch ui``.

        None without a run, and where only the server's own settings know its address: ``databricks``.

        Args:
            run_id: The run.
            url: Where people find MLflow, if it is elsewhere for them: ``http://host:5000``.
        """
        if url is not None and not re.match(r"https?://[^/\s]", url):
            raise UserError(f"--mlflow-url={redact(url)} is not an address; give one such as http://host:5000")
        if run_id is None or self.type == "none":
            return None
        page = url or self.store.page
        return f"{page.rstrip('/')}/#/runs/{run_id}" if page.startswith("http") else None

    @property
    def store(self) -> Store:
        """Where MLflow keeps runs."""
        return Store.locate(self.uri, self.folder)

    def elsewhere(self) -> TrackingOptions:
        """Return the same place, for a process in any folder."""
        relative = re.fullmatch(r"(sqlite(?:\+\w+)?:///)([^/].*)", self.uri or "")
        uri = f"{relative[1]}{Path(relative[2]).absolute()}" if relative else self.uri
        return replace(self, uri=uri, folder=self.folder.resolve())


def _with_password(uri: str) -> str:
    """Return an address from a record with its password, if MLflow's environment variables have that."""
    if HIDDEN not in uri:
        return uri
    given = os.environ.get("MLFLOW_TRACKING_URI", "")
    if redact(given) == uri:
        return given
    signs_in = any(os.environ.get(f"MLFLOW_TRACKING_{name}") for name in ("USERNAME", "TOKEN"))
    return re.sub(r"//[^/]*@", "//", uri) if signs_in and uri.startswith("http") else uri
