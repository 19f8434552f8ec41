"""Forgets searches: their records, and the evaluations that no other search on record is of."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from raysearch.errors import UserError
from raysearch.ledger.ledger import Ledger
from raysearch.ledger.locks import is_held
from raysearch.search.record import SEARCHES, SearchRecord


@dataclass(frozen=True)
class Cleaned:
    """What goes from a ledger.

    Args:
        path: The ledger.
        searches: The searches that are forgotten.
        rows: How many evaluations and texts go with them.
        size_bytes: The file's size, before and after; the same as long as nothing is done.
        done: Whether it is done, or only what would be.
    """

    path: Path
    searches: list[str]
    rows: dict[str, int]
    size_bytes: tuple[int, int]
    done: bool


def clean(ledger: Ledger, names: Sequence[str], *, really: bool) -> Cleaned:
    """Forget searches, and give the space of what is gone back to the disk.

    The evaluations of a search go with it unless another search on record is of the same calibration, or of one that
    it is a part of. What another command needs of them later is computed again. Without names, space alone is given
    back; if not `really`, what would go is counted.

    Raises:
        UserError: A name fits no search or several, or a search that would lose something is running.
    """
    before = ledger.path.stat().st_size
    rows = dict.fromkeys(("evaluations", "texts"), 0)
    # A search takes its lock before it writes, so one that begins meanwhile is seen here, or writes afterwards.
    with ledger.transaction() if really else nullcontext(ledger.connection) as connection:
        gone = {record.search_id: record for record in (SEARCHES.find(ledger, name) for name in names)}
        for name in gone:
            if is_held(ledger, name):
                raise UserError(f"SEARCH={name} is running; wait for its end, or stop it first")
        stay = {one for record in SEARCHES.all(ledger) if record.search_id not in gone for one in _calibrations(record)}
        calibrations = {one for record in gone.values() for one in _calibrations(record)} - stay
        for table in rows:
            for calibration in calibrations:
                where = f"FROM {table} WHERE calibration = ?"
                rows[table] += connection.execute(f"SELECT count(*) {where}", (calibration,)).fetchone()[0]
                if really:
                    connection.execute(f"DELETE {where}", (calibration,))
        if really:
            connection.executemany("DELETE FROM searches WHERE search_id = ?", [(name,) for name in gone])
    if really:
        ledger.compact()
    return Cleaned(ledger.path, list(gone), rows, (before, ledger.path.stat().st_size), really)


def _calibrations(record: SearchRecord) -> list[str]:
    """Return the fingerprints that a search's evaluations are kept by: of a weighted one, those of its parts."""
    fingerprints = record.fingerprints
    return fingerprints.get("parts", fingerprints.get("calibration", "")).split()
