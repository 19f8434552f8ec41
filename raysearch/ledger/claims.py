"""Who is computing what, so that searches sharing a ledger at the same time never compute the same thing.

A process claims evaluations before it computes them, and holds an operating-system lock on a file of its own for as
long as it lives. A claim whose owner's lock is free belongs to a dead process and may be taken over at once, however
it died. (SQLite's write-ahead log needs all processes on one machine anyway, so a lock on a file reaches them all.)
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from raysearch.ledger.ledger import Ledger, SubjectT
from raysearch.ledger.locks import owned, remove_if_stale


class Claims:
    """The evaluations that this process has undertaken to compute.

    Args:
        ledger: The ledger they will go to.

    Raises:
        UserError: There is no room for a lock beside it.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._owner = uuid.uuid4().hex
        self._held = ExitStack()
        with ledger.explaining():
            for left in self._lock_file("").parent.glob(self._lock_file("*").name):
                remove_if_stale(left)  # of a process that died before it had claimed anything
            self._held.enter_context(owned(self._lock_file(self._owner), wait=True))  # while another looks at it
        self._held.callback(self.release)  # and without its lock, what could not be released is anybody's

    def take(self, calibration: str, wanted: Iterable[tuple[SubjectT, int]]) -> list[tuple[SubjectT, int]]:
        """Claims what neither the ledger knows nor a living process has claimed.

        Args:
            calibration: The calibration's fingerprint.
            wanted: Masks, or statistics, and shards.

        Returns:
            Those now claimed, in the order given; the others are known, or will be.
        """
        wanted = list(wanted)
        with self._ledger.transaction() as connection:
            owners = connection.execute("SELECT DISTINCT owner FROM claims").fetchall()
            for (owner,) in owners:
                if remove_if_stale(self._lock_file(owner)):
                    connection.execute("DELETE FROM claims WHERE owner = ?", (owner,))
            taken = []
            for subject, shard in wanted:
                key = (calibration, str(subject), shard)
                cursor = connection.execute(
                    "INSERT OR IGNORE INTO claims SELECT ?, ?, ?, ? WHERE NOT EXISTS "
                    "(SELECT 1 FROM evaluations WHERE calibration = ? AND subject = ? AND shard = ?)",
                    (*key, self._owner, *key),
                )
                if cursor.rowcount:
                    taken.append((subject, shard))
        return taken

    def release(self) -> None:
        """Gives up every claim, kept or not."""
        with self._ledger.transaction() as connection:
            connection.execute("DELETE FROM claims WHERE owner = ?", (self._owner,))

    def close(self) -> None:
        """Releases the claims and the lock. Closing twice is harmless."""
        self._held.close()

    def _lock_file(self, owner: str) -> Path:
        return self._ledger.beside(f"claims-{owner}.lock")
