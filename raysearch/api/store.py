"""The handle of a store: its searches and studies, and the care of its ledger."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from raysearch.api.location import StoreLocation
from raysearch.api.search_handle import Search
from raysearch.api.study_handle import Study
from raysearch.core.paths import PathLike, as_folder, as_path, ledger_path
from raysearch.core.validation import checked
from raysearch.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

    from raysearch.ledger.checking import LedgerCheck
    from raysearch.ledger.merging import Merged
    from raysearch.ledger.table import RecordTable
    from raysearch.searching.search_record import Cleaned, SearchRecord
    from raysearch.studies.study_record import CellRecord


def open_store(path: PathLike = "mlruns") -> Store:
    """Return a handle on a store. Nothing is read yet.

        store = raysearch.open("mlruns")
        store.search("latest").result

    Args:
        path: The folder that searches write to, or the path of a ledger's file.

    Raises:
        UserError: The path cannot be used.
    """
    return Store(StoreLocation(as_path("--store", path)))


@dataclass(frozen=True)
class Store:
    """A store: the folder that searches write to, with its ledger. `raysearch.open` returns it.

    A handle keeps no file open: each method opens the ledger, and closes it. So a handle can be pickled, and several
    processes may have handles on one store. A method raises `UserError` if there is no ledger, or if it cannot be used.

    Args:
        location: The folder, or the ledger's file.
    """

    location: StoreLocation

    @property
    def path(self) -> Path:
        """The folder, or the ledger's file."""
        return self.location.path

    def search(self, name: str = "latest") -> Search:
        """Return the search that a name fits.

        Args:
            name: A search id, the start of one, an MLflow run id, or ``latest``.

        Raises:
            UserError: No search fits the name, or several do.
        """
        from raysearch.searching.search_record import SEARCHES
        from raysearch.studies.study_record import STUDIES

        with self.location.opened_ledger() as ledger:
            try:
                record = SEARCHES.find(ledger, name)
            except UserError as error:
                if SEARCHES.names(ledger, name) or not STUDIES.names(ledger, name):
                    raise
                raise UserError(
                    f"SEARCH={name!r} is a study; raysearch report {name} shows the results of its searches, or name "
                    "one of them"
                ) from error
        return Search(self.location, record.search_id)

    def study(self, name: str = "latest") -> Study:
        """Return the study that a name fits.

        Args:
            name: A study's id, the start of one, its MLflow run id, or ``latest``.

        Raises:
            UserError: No study fits the name, or several do.
        """
        from raysearch.studies.study_record import STUDIES

        with self.location.opened_ledger() as ledger:
            return Study(self.location, STUDIES.find(ledger, name).study_id)

    def search_or_study(self, name: str = "latest") -> Search | Study:
        """Return the search or the study that a name fits.

        Args:
            name: The id of a search or a study, the start of one, an MLflow run id, or ``latest`` for the last search.

        Raises:
            UserError: Neither a search nor a study fits the name, or several do.
        """
        from raysearch.ledger.table import find_in
        from raysearch.searching.search_record import SEARCHES, SearchRecord
        from raysearch.studies.study_record import STUDIES

        with self.location.opened_ledger() as ledger:
            record = find_in(ledger, name, SEARCHES, STUDIES)
        if isinstance(record, SearchRecord):
            return Search(self.location, record.search_id)
        return Study(self.location, record.study_id)

    def searches(self) -> list[Search]:
        """Return all searches, the newest first."""
        from raysearch.searching.search_record import SEARCHES

        with self.location.opened_ledger() as ledger:
            return [Search(self.location, search_id) for search_id in SEARCHES.ids(ledger)]

    def studies(self) -> list[Study]:
        """Return all studies, the newest first."""
        from raysearch.studies.study_record import STUDIES

        with self.location.opened_ledger() as ledger:
            return [Study(self.location, study_id) for study_id in STUDIES.ids(ledger)]

    def records(self) -> list[SearchRecord]:
        """Return the records of all searches, read at once, the newest first."""
        from raysearch.searching.search_record import SEARCHES, with_current_states

        with self.location.opened_ledger() as ledger:
            return with_current_states(ledger, SEARCHES.all(ledger))

    def cells_by_search(self) -> dict[str, tuple[str, CellRecord]]:
        """Return, by search id, the id of the newest study that contains the search, and its cell there."""
        from raysearch.studies.study_record import cells_by_search

        with self.location.opened_ledger() as ledger:
            return cells_by_search(ledger)

    def to_frame(self) -> pd.DataFrame:
        """Return all searches as a table indexed by their ids, the newest first.

        A search that has not finished has no losses in the table.
        """
        from raysearch.searching.frames import searches_frame

        return searches_frame(self.records())

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: the table of all searches."""
        return self.to_frame().to_html()

    def check(self) -> LedgerCheck:
        """Read every row of the ledger, and return the damage that was found."""
        from raysearch.ledger.checking import check_ledger

        with self.location.opened_ledger() as ledger:
            return check_ledger(ledger, _record_tables())

    def merge(self, *others: PathLike) -> Merged:
        """Copy the rows of other ledgers that this one lacks. Each ledger is merged completely, or not at all.

        This store is created if it does not exist.

            raysearch.open("mlruns").merge("other-machine/ledger.db")

        Args:
            *others: The files of the other ledgers, or their stores.

        Raises:
            UserError: A ledger cannot be used, or two of them contradict each other.
        """
        from raysearch.ledger.ledger import Ledger
        from raysearch.ledger.merging import merge_ledgers

        files = [ledger_path("OTHER", other) for other in others]
        with closing(Ledger(self.location.ledger_file)) as ledger:
            return merge_ledgers(ledger, files, _record_tables())

    def clean(self, *searches: str, yes: bool = False) -> Cleaned:
        """Delete searches, and the evaluations that no other recorded search uses, and shrink the file.

        Args:
            *searches: Ids, starts of ids, or ``latest``; none to shrink the file only.
            yes: Delete. Otherwise only count what would be deleted.

        Returns:
            What is deleted (or, without `yes`, would be), and the size of the file before and after, in bytes.

        Raises:
            UserError: A name fits no search or several, or one of the searches is running.
        """
        from raysearch.searching.search_record import clean
        from raysearch.studies.study_record import STUDIES

        checked(bool, "yes", yes)
        with self.location.opened_ledger() as ledger:
            studies = STUDIES.all(ledger)
            cleaned = clean(ledger, searches, really=yes)
        affected = [
            study.study_id for study in studies if any(cell.search_id in cleaned.searches for cell in study.cells)
        ]
        return replace(cleaned, studies=affected)

    def export_tables(self, out: PathLike, *, format: str = "csv") -> dict[Path, int]:
        """Write the searches, trials and evaluations as tables for pandas, R or a spreadsheet.

        Args:
            out: The folder to write.
            format: ``csv``, ``parquet`` or ``jsonl``.

        Returns:
            The number of rows of each file.

        Raises:
            UserError: The format is unknown, or a file cannot be written.
        """
        from raysearch.searching.frames import export_frames

        with self.location.opened_ledger() as ledger:
            return export_frames(ledger, as_folder("--out", out), format)

    def ui(self, uri: str | None = None, *, host: str = "127.0.0.1", port: int = 5000) -> NoReturn:
        """Run MLflow's server for the recorded searches until Ctrl-C. The current process becomes the server.

        Args:
            uri: A tracking URI other than the store's.
            host: The address to listen on.
            port: The port to listen on.

        Raises:
            UserError: The store does not exist or cannot be opened, or the port is in use.
        """
        from raysearch.tracking.mlflow.ui import serve_ui

        serve_ui(self.path, uri, host, port)


def _record_tables() -> list[RecordTable[Any]]:
    """Return the tables of a ledger whose rows are records: searches and studies."""
    from raysearch.searching.search_record import SEARCHES
    from raysearch.studies.study_record import STUDIES

    return [SEARCHES, STUDIES]
