"""The location of a store, by which handles open its ledger."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysearch.core.paths import as_path, ledger_path
from raysearch.searching.settings import PlaceSettings

if TYPE_CHECKING:
    from raysearch.ledger.ledger import Ledger


@dataclass(frozen=True)
class StoreLocation:
    """The location of a store. It keeps no file open, so it can be pickled.

    Args:
        path: The folder that searches write to, or the file of its ledger.
    """

    path: Path

    @classmethod
    def of_folder_and_ledger(cls, folder: Path, ledger: Path) -> StoreLocation:
        """Return the location of a store whose ledger may be a separate file.

        Args:
            folder: The folder of the store.
            ledger: The file of its ledger.

        Returns:
            The location. Its path is the folder if the ledger is at its usual place in it, else the ledger.
        """
        return cls(folder if ledger == folder / "ledger.db" else ledger)

    def __reduce__(self) -> tuple[type[StoreLocation], tuple[Path]]:
        """Pickle the absolute path, since another process may have another current folder."""
        return StoreLocation, (self.path.absolute(),)

    @property
    def ledger_file(self) -> Path:
        """The file of the ledger.

        Raises:
            UserError: The path cannot be used.
        """
        return ledger_path("--store", self.path)

    def opened_ledger(self) -> AbstractContextManager[Ledger]:
        """Return a context manager that opens the ledger, and closes it at the end of the context.

        Raises:
            UserError: There is no ledger, or it cannot be used.
        """
        from raysearch.ledger.ledger import opened

        return opened(self.ledger_file)

    def current_paths(self, config: Mapping[str, Any], ledger: Ledger) -> dict[str, str | None]:
        """Return the present values of ``store`` and ``ledger``: a store may have been moved since it was written.

        If the location is the ledger's file, the store is the folder of the file; or the recorded store, if the record
        has a separate ledger.

        Args:
            config: The configuration of a search or a study in the ledger.
            ledger: The open ledger.

        Returns:
            The values of the keys ``store`` and ``ledger``; ``ledger`` is None for the usual place in the store.
        """
        folder = as_path("--store", self.path)
        if folder.is_file():
            places = PlaceSettings(config)
            folder = folder.parent if places.ledger is None else places.store
        return {"store": str(folder), "ledger": None if ledger.path == folder / "ledger.db" else str(ledger.path)}
