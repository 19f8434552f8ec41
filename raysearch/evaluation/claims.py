"""Who is computing what, so that searches sharing a ledger at the same time never compute the same thing.

A process claims evaluations before it computes them, and holds an operating-system lock on a file of its own for as
long as it lives. A claim whose owner's lock is free belongs to a dead process and may be taken over at once, however
it died. (SQLite's write-ahead log needs all processes on one machine anyway, so a lock on a file reaches them all.)
"""

from __future__ import annotations

import fcntl
import uuid
from collections.abc import Iterable
from pathlib import Path

from raysearch.evaluation.ledger import Ledger, SubjectT


class Claims:
    """The evaluations that this process has undertaken to compute.

    Args:
        ledger: The ledger they will go to.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._owner = uuid.uuid4().hex
        self._lock = self._lock_file(self._owner).open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

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
                if self._is_dead(owner):
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
        if not self._lock.closed:
            self.release()
            self._lock_file(self._owner).unlink(missing_ok=True)
            self._lock.close()

    def _is_dead(self, owner: str) -> bool:
        """Whether nobody holds the owner's lock any more."""
        if owner == self._owner:
            return False
        path = self._lock_file(owner)
        try:
            with path.open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return True
        except BlockingIOError:
            return False
        path.unlink(missing_ok=True)
        return True

    def _lock_file(self, owner: str) -> Path:
        return self._ledger.path.with_name(f"{self._ledger.path.name}.{owner}.lock")
