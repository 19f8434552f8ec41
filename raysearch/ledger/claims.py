"""Claims of evaluations, so that searches that share a ledger at the same time never compute the same evaluation.

A process claims evaluations before it computes them, and holds an operating-system lock on its own lock file until it
ends. If the lock of a claim's owner is free, the owner is dead, and another process may claim the evaluation at once.
A living process renews the time of its lock file. A stopped process (Ctrl-Z) does not, and loses its claims after
`SILENT_S`; if it continues later, it computes values equal to those of the others. File locks reach all processes,
since SQLite's write-ahead log requires that all of them run on one machine.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path

from raysearch.core.evaluations import Key
from raysearch.ledger.ledger import Ledger
from raysearch.ledger.locks import owned, owner_of, remove_if_stale

_log = logging.getLogger(__name__)
#: After this time without a sign of life, in seconds, a process loses its claims.
SILENT_S = 60.0
_RENEW_S = 5.0


class Claims:
    """The evaluations that this process has claimed and is going to compute.

    Args:
        ledger: The ledger, in whose folder the lock file is created.

    Raises:
        UserError: The lock file cannot be created.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._owner = uuid.uuid4().hex
        self._held = ExitStack()
        with ledger.explaining():
            for lock_file in self._lock_file("").parent.glob(self._lock_file("*").name):
                remove_if_stale(lock_file)  # of a process that died before it had claimed anything
            # Another process may be testing the new file's lock, so wait.
            self._held.enter_context(owned(self._lock_file(self._owner), timeout_s=-1))
        ended = threading.Event()
        beat = threading.Thread(target=self._renew, args=(ended,), name="claims", daemon=True)
        beat.start()
        self._held.callback(beat.join)
        self._held.callback(ended.set)
        self._held.callback(self.release)  # if this fails, the free lock lets others claim

    def take(self, keys: Iterable[Key]) -> list[Key]:
        """Claim the evaluations that neither the ledger contains nor a living process has claimed.

        Args:
            keys: The keys of the evaluations.

        Returns:
            The keys that are now claimed, in their order. The ledger contains the remaining ones, or another process
            computes them.

        Raises:
            UserError: The ledger cannot be written.
        """
        with self._ledger.transaction() as connection:
            for owner in self._other_owners():
                if self._silence_s(owner) > SILENT_S or remove_if_stale(self._lock_file(owner)):
                    connection.execute("DELETE FROM claims WHERE owner = ?", (owner,))
                    _log.info("the claims of a process that has ended or stopped are free again: %s", owner)
            claimed = []
            for key in keys:
                columns = (key.calibration, str(key.subject), key.shard)
                cursor = connection.execute(
                    "INSERT OR IGNORE INTO claims SELECT ?, ?, ?, ? WHERE NOT EXISTS "
                    "(SELECT 1 FROM evaluations WHERE calibration = ? AND subject = ? AND shard = ?)",
                    (*columns, self._owner, *columns),
                )
                if cursor.rowcount:
                    claimed.append(key)
        return claimed

    def release(self) -> None:
        """Release every claim, whether its evaluation was recorded or not."""
        with self._ledger.transaction() as connection:
            connection.execute("DELETE FROM claims WHERE owner = ?", (self._owner,))

    def other_owners(self) -> list[str]:
        """Return the other processes that have claims, as text: ``process 123 on host``."""
        return sorted(owner_of(self._lock_file(owner)) for owner in self._other_owners())

    def _other_owners(self) -> list[str]:
        rows = self._ledger.read("SELECT DISTINCT owner FROM claims WHERE owner <> ?", (self._owner,))
        return [owner for (owner,) in rows]

    def _silence_s(self, owner: str) -> float:
        try:
            return time.time() - self._lock_file(owner).stat().st_mtime
        except OSError:
            return 0.0  # the process has just ended

    def _renew(self, ended: threading.Event) -> None:
        while not ended.wait(_RENEW_S):
            with suppress(OSError):  # a full disk is reported elsewhere
                os.utime(self._lock_file(self._owner))

    def close(self) -> None:
        """Release the claims and the lock. Closing twice is harmless."""
        self._held.close()

    def _lock_file(self, owner: str) -> Path:
        return self._ledger.file_with_suffix(f"claims-{owner}.lock")
