"""Options of the tracker that records searches and studies, and the location of MLflow's store."""

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

from raysearch.errors import UserError
from raysearch.text.redaction import HIDDEN, redact, secret_in
from raysearch.text.sentences import did_you_mean

#: The URI schemes that MLflow supports, for databases with or without ``+driver``; its plugins add more.
_SCHEMES = {"http", "https", "databricks", "databricks-uc", "uc", "file", "sqlite", "postgresql", "mysql", "mssql"}


@dataclass(frozen=True)
class MlflowStore:
    """A store of MLflow.

    Args:
        uri: Its tracking URI.
        folder: The folder of its artifacts, unless the store is a server, and of the database of the embedded store.
    """

    uri: str
    folder: Path

    @classmethod
    def locate(cls, uri: str | None, folder: Path, argument: str = "tracking.uri") -> MlflowStore:
        """Return the store at a URI.

        Args:
            uri: A tracking URI without a password; None for the embedded store. MLFLOW_TRACKING_URI may contain the
                same URI with its password.
            folder: The folder of the embedded store and of artifacts.
            argument: The name of the argument in error messages.

        Returns:
            The store, with the password in its URI.

        Raises:
            UserError: The URI has a password, MLflow does not support it, or MLflow cannot keep runs there.
        """
        folder = folder.expanduser().resolve()
        if uri == "":
            raise UserError(f"{argument}= is empty; give an address, or leave it out")
        if uri and (secret := secret_in(uri)):
            raise UserError(f"{argument} has {secret}; remove it from the value, and set {password_variables(uri)}")
        scheme, separator, _ = (uri or "").partition("://")
        if separator and scheme.partition("+")[0] not in _SCHEMES:
            schemes = _SCHEMES | {plugin.name for plugin in entry_points(group="mlflow.tracking_store")}
            if scheme not in schemes:
                problem = f"{argument}={redact(uri or '')} has a scheme that MLflow does not support"
                raise UserError(f"{problem}; {did_you_mean(scheme, schemes)}")
        if re.fullmatch(r"[\w.-]+:\d+(/.*)?", uri or ""):
            raise UserError(f"{argument}={uri} has no scheme; use http://{uri}")
        allows_folders = os.environ.get("MLFLOW_ALLOW_FILE_STORE", "").lower() in ("true", "1")  # as in older versions
        if uri and re.match(r"file:|(?!databricks$|databricks-uc$|uc$)[^:]*$", uri) and not allows_folders:
            file = Path(re.sub(r"^file:(//)?", "", uri)).expanduser().absolute() / "mlflow.db"
            raise UserError(
                f"{argument}={uri} is a folder, which MLflow no longer supports; use sqlite:///{file}, or http://… "
                "for a server"
            )
        if re.fullmatch(r"sqlite(\+\w+)?:/*(:memory:)?(\?.*)?", uri or ""):
            raise UserError(
                f"{argument}={uri} names no file, so all runs would be lost; use sqlite:////path/to/file.db"
            )
        return cls(_with_password(uri) if uri else f"sqlite:///{folder / 'mlflow.db'}", folder)

    @property
    def redacted_uri(self) -> str:
        """The URI without secrets, for messages."""
        return redact(self.uri)

    @property
    def page(self) -> str:
        """The address of its page in a browser: on its server, or on that of ``raysearch ui``."""
        return re.sub(r"//[^/]*@", "//", self.uri).rstrip("/") if self.is_server else "http://127.0.0.1:5000"

    @property
    def is_server(self) -> bool:
        """Whether the URI is that of a server, which decides where artifacts are written."""
        return self.uri.startswith(("http:", "https:", "databricks"))

    @property
    def is_embedded(self) -> bool:
        """Whether it is the embedded store, a database in the folder."""
        return self.uri == f"sqlite:///{self.folder / 'mlflow.db'}"

    @property
    def artifacts(self) -> Path:
        """The folder of artifacts; absolute, since MLflow resolves a relative path in its current folder."""
        return self.folder / "artifacts"

    @property
    def file(self) -> Path | None:
        """The file of a local database; None for any other store."""
        return Path(re.sub(r"^sqlite(\+\w+)?:///|\?.*$", "", self.uri)) if self.uri.startswith("sqlite") else None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the embedded store for other searches: MLflow fails if two processes create its tables at once."""
        with ExitStack() as stack:
            if self.is_embedded:
                self.folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(FileLock(self.folder / "mlflow.lock", fallback_to_soft=False))
            yield


@dataclass(frozen=True)
class TrackingOptions:
    """Options of the tracker that records searches and studies.

    Args:
        type: ``mlflow``, or ``none`` to record nothing; the ledger records searches in either case.
        uri: An MLflow tracking URI; None for the embedded store.
        experiment: The MLflow experiment of the searches.
        folder: The folder of the embedded store and its artifacts.
        ledger: The ledger that records the searches; None for the ledger in the folder.
        child_runs: Which trials of a search have child runs in MLflow: ``best``, for the best mask of each number of
            layers; ``all``; or ``none``. All trials are in its table, and their losses are in its chart.

    Raises:
        UserError: The URI has a password, MLflow does not support it, or the experiment has no name.
    """

    type: Literal["mlflow", "none"]
    uri: str | None
    experiment: str
    folder: Path
    ledger: Path | None = None
    child_runs: Literal["best", "all", "none"] = "best"

    def __post_init__(self) -> None:
        MlflowStore.locate(self.uri, self.folder)
        if not self.experiment.strip():
            raise UserError(f"tracking.experiment={self.experiment} is not a name; give one, such as raysearch")

    def link(self, run_id: str | None, url: str | None = None) -> str | None:
        """Return the address of a run's page, on its server or on that of ``raysearch ui``.

        Args:
            run_id: The id of the run; None if there is none.
            url: The address of MLflow for users, if it differs from that of the store, such as ``http://host:5000``.

        Returns:
            The address; None if there is no run, or if the URI contains no address, as ``databricks``.

        Raises:
            UserError: `url` is not an address.
        """
        if url is not None and not re.match(r"https?://[^/\s]", url):
            raise UserError(f"--mlflow-url={redact(url)} is not an address; give one such as http://host:5000")
        if run_id is None or self.type == "none":
            return None
        page = url or self.store.page
        return f"{page.rstrip('/')}/#/runs/{run_id}" if page.startswith("http") else None

    @property
    def store(self) -> MlflowStore:
        """The store of MLflow."""
        return MlflowStore.locate(self.uri, self.folder)

    def with_absolute_paths(self) -> TrackingOptions:
        """Return the same options with absolute paths, for a process in another folder."""
        relative = re.fullmatch(r"(sqlite(?:\+\w+)?:///)([^/].*)", self.uri or "")
        uri = f"{relative[1]}{Path(relative[2]).absolute()}" if relative else self.uri
        return replace(self, uri=uri, folder=self.folder.resolve())


def password_variables(uri: str) -> str:
    """Return the environment variables for the password or the token of a tracking URI, for messages."""
    if uri.startswith("http"):
        return "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
    return "PGPASSWORD" if uri.startswith("postgresql") else "MLFLOW_TRACKING_URI to the whole address"


def _with_password(uri: str) -> str:
    """Return a URI with its password if MLFLOW_TRACKING_URI is the same URI with a password."""
    environment_uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    uri = _without_password(uri)  # earlier versions recorded *** in place of a password
    return environment_uri if _without_password(redact(environment_uri)) == uri else uri


def _without_password(redacted_uri: str) -> str:
    """Return a redacted URI without the ``***`` of its password, of its token, or of parameters of its query."""
    hidden = re.escape(HIDDEN)
    uri = re.sub(f"(?<=//){hidden}@|:{hidden}(?=@)|(?<=[?&])[^?&=]*={hidden}&?", "", redacted_uri)
    return uri.rstrip("?&")
