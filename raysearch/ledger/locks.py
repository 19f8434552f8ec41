"""Locks between processes. A lock file names the process that holds the lock, which is free once that process ends."""

from __future__ import annotations

import errno
import os
import platform
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout, lock_descriptor

from raysearch.errors import UserError
from raysearch.ledger.ledger import Ledger

_SIGNED = b"process "
_LOOK_S = 0.2  # longer than `is_locked` of another process holds a lock


@contextmanager
def owned(path: Path, timeout_s: float) -> Iterator[None]:
    """Hold a lock on a file that names this process, and remove the file at the end.

    Args:
        path: The lock file, which is created.
        timeout_s: How long to wait for another process, in seconds; -1 waits without a limit.

    Raises:
        Timeout: Another process still holds the lock.
        OSError: The file cannot be created, or is not a lock file.
    """
    with FileLock(path, timeout=timeout_s, fallback_to_soft=False, on_acquired=_sign):
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def remove_if_stale(path: Path) -> bool:
    """Remove a lock file whose owner is dead. Return whether the file no longer exists."""
    try:
        if path.exists():
            with owned(path, timeout_s=0):
                pass
    except Timeout:
        return False
    return True


@contextmanager
def locked(ledger: Ledger, name: str, kind: str, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock of a search or a study, so that no other process runs it at the same time.

    Args:
        ledger: The ledger that records it.
        name: Its id.
        kind: The name of its argument in a command, such as ``SEARCH``, for error messages.
        wait: Whether to wait until another process releases the lock.

    Raises:
        UserError: Another process holds the lock, or the lock file cannot be created.
    """
    path = _lock_file(ledger, name)
    with ExitStack() as stack:
        with ledger.explaining():
            try:
                stack.enter_context(owned(path, timeout_s=-1 if wait else _LOOK_S))
            except Timeout as timeout:
                raise UserError(
                    f"{kind}={name} is already being run by {owner_of(path)}; wait for that to end, or stop it first"
                ) from timeout
        yield


def is_locked(ledger: Ledger, name: str) -> bool:
    """Return whether a living process holds the lock of a search or a study. Nothing is written.

    Args:
        ledger: The ledger that records it.
        name: Its id.

    Returns:
        True also if the lock file cannot be read.
    """
    try:
        with open(_lock_file(ledger, name), "rb") as file:
            return not lock_descriptor(file.fileno(), blocking=False)
    except FileNotFoundError:
        return False
    except OSError:  # for example, the file of another user, which may not be read
        return True


def _lock_file(ledger: Ledger, name: str) -> Path:
    return ledger.file_with_suffix(f"{name}.lock")


def _sign(descriptor: int) -> None:
    """Write the name of this process into a lock file; refuse, and do not change, a file that is not a lock file."""
    status = os.fstat(descriptor)
    is_plain_file = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
    if not is_plain_file or (status.st_size and not os.pread(descriptor, len(_SIGNED), 0).startswith(_SIGNED)):
        raise OSError(errno.EEXIST, "a file that is not a lock has the name of one")
    os.ftruncate(descriptor, 0)
    os.write(descriptor, b"%b%d on %b" % (_SIGNED, os.getpid(), platform.node().encode()))


def owner_of(path: Path) -> str:
    """Return the process that holds a lock, as text: ``process 123 on host``."""
    try:
        return path.read_text(encoding="utf-8", errors="replace") or "another process"
    except FileNotFoundError:  # the process has just ended
        return "another process"
