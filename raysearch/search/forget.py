"""Forgets searches: their records, and the evaluations that no other search on record is of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from raysearch.ledger.ledger import Ledger
from raysearch.search.record import SEARCHES


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

    The evaluations of a search go with it unless another search on record is of the same calibration. What another
    command needs of them later is computed again.

    Args:
        ledger: The ledger.
        names: Of the searches: ids, starts of ids, or ``latest``; none to give back space alone.
        really: Whether to do it, or only to count.

    Raises:
        UserError: A name fits no search or several, or another process uses the ledger.
    """
    gone = {record.search_id: record for record in (SEARCHES.find(ledger, name) for name in names)}
    stay = {one.fingerprints.get("calibration") for one in SEARCHES.all(ledger) if one.search_id not in gone}
    calibrations = {one.fingerprints.get("calibration") for one in gone.values()} - stay - {None}
    before = ledger.path.stat().st_size
    rows = dict.fromkeys(("evaluations", "texts"), 0)
    with ledger.transaction() as connection:
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
