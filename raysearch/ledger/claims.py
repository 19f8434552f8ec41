"""Who is computing what, so that searches sharing a ledger at the same time never compute the same thing.

A process claims evaluations before it computes them, and holds an operating-system lock on a file of its own for as
long as it lives. A claim whose owner's lock is free belongs to a dead process and may be taken over at once, however it
died. A living process renews its file's time. One that is stopped (Ctrl-Z) does not, and loses its claims after
`SILENT_S`; what it computes all the same is what others have computed. (SQLite's write-ahead log needs all processes on
one machine anyway, so a lock on a file reaches them all.)
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path

from raysearch.ledger.ledger import Ledger, SubjectT
from raysearch.ledger.locks import owned, owner_of, remove_if_stale

#: After this time without a sign of life, in seconds, a process loses its claims.
SILENT_S = 60.0
_RENEW_S = 5.0


class Claims:
    """The evaluations that this process has undertaken to compute.

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
            self._held.enter_context(owned(self._lock_file(self._owner), timeout_s=-1))  # while another looks at it
        ended = threading.Event()
        beat = threading.Thread(target=self._renew, args=(ended,), name="claims", daemon=True)
        beat.start()
        self._held.callback(beat.join)
        self._held.callback(ended.set)
        self._held.callback(self.release)  # and without its lock, what could not be released is anybody's

    def take(self, calibration: str, wanted: Iterable[tuple[SubjectT, int]]) -> list[tuple[SubjectT, int]]:
        """Claim what neither the ledger knows nor a living process has claimed.

        Returns:
            Those now claimed, in the order given; the others are known, or will be.
        """
        with self._ledger.transaction() as connection:
            for owner in self._other_owners():
                if self._silence_s(owner) > SILENT_S or remove_if_stale(self._lock_file(owner)):
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
        """Give up every claim, kept or not."""
        with self._ledger.transaction() as connection:
            connection.execute("DELETE FROM claims WHERE owner = ?", (self._owner,))

    def others(self) -> list[str]:
        """Return who else has claims, in words: ``process 123 on host``."""
        return sorted(owner_of(self._lock_file(owner)) for owner in self._other_owners())

    def _other_owners(self) -> list[str]:
        rows = self._ledger.read("SELECT DISTINCT owner FROM claims WHERE owner <> ?", (self._owner,))
        return [owner for (owner,) in rows]

    def _silence_s(self, owner: str) -> float:
        try:
            return time.time() - self._lock_file(owner).stat().st_mtime
        except OSError:
            return 0.0  # it has just ended

    def _renew(self, ended: threading.Event) -> None:
        while not ended.wait(_RENEW_S):
            with suppress(OSError):  # a full disk says so elsewhere
                os.utime(self._lock_file(self._owner))

    def close(self) -> None:
        """Release the claims and the lock. Closing twice is harmless."""
        self._held.close()

    def _lock_file(self, owner: str) -> Path:
        return self._ledger.beside(f"claims-{owner}.lock")
