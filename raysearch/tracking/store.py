"""Where a tracking store lies: the embedded one in a folder, or the one a URI names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from raysearch.locks import locked


@dataclass(frozen=True)
class Store:
    """A place where MLflow keeps runs.

    Args:
        uri: MLflow's tracking URI.
        folder: Holds the artifacts of every store that is not a server, and the database of the embedded one.
    """

    uri: str
    folder: Path

    @classmethod
    def locate(cls, uri: str | None, folder: Path) -> Store:
        """The store at `uri`; None for the embedded one, ``<folder>/mlflow.db``."""
        folder = folder.expanduser().resolve()
        return cls(uri or f"sqlite:///{folder / 'mlflow.db'}", folder)

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

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keeps other searches out of the embedded store meanwhile: MLflow breaks if two make its tables at once."""
        if not self.is_embedded:
            yield
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder / "mlflow.lock"):
            yield
