"""Locks between processes that say who holds them, and that a dying process releases, however it dies."""

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
_LOOK_S = 0.2  # more than `is_held` keeps a lock from others


@contextmanager
def owned(path: Path, timeout_s: float) -> Iterator[None]:
    """Hold a lock on a file that names this process, and remove the file at the end; a timeout of -1 is for ever.

    Raises:
        Timeout: Another process holds it for longer.
    """
    with FileLock(path, timeout=timeout_s, fallback_to_soft=False, on_acquired=_sign):
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def remove_if_stale(path: Path) -> bool:
    """Remove the lock file of an owner that is dead, and return whether there is none now."""
    try:
        if path.exists():
            with owned(path, timeout_s=0):
                pass
    except Timeout:
        return False
    return True


@contextmanager
def held(ledger: Ledger, name: str, kind: str, *, wait: bool = False) -> Iterator[None]:
    """Keep other processes from running a search or a study at the same time.

    Its `kind` is what it is called in a command: ``SEARCH``, ``STUDY``. Another process that has it is waited for, if
    `wait` says so.

    Raises:
        UserError: Another process has it, or there is no room for a lock.
    """
    path = _lock_file(ledger, name)
    with ExitStack() as stack:
        with ledger.explaining():
            try:
                stack.enter_context(owned(path, timeout_s=-1 if wait else _LOOK_S))
            except Timeout as taken:
                raise UserError(
                    f"{kind}={name} is already being run by {owner_of(path)}; wait for that to end, or stop it first"
                ) from taken
        yield


def is_held(ledger: Ledger, name: str) -> bool:
    """Return whether a living process has the lock of a search or a study, or may have it; nothing is written."""
    try:
        with open(_lock_file(ledger, name), "rb") as file:
            return not lock_descriptor(file.fileno(), blocking=False)
    except FileNotFoundError:
        return False
    except OSError:  # as where somebody else keeps it closed to us
        return True


def _lock_file(ledger: Ledger, name: str) -> Path:
    return ledger.beside(f"{name}.lock")


def _sign(descriptor: int) -> None:
    """Write into a lock's file whose it is; a file of somebody else in its place is left as it is."""
    status = os.fstat(descriptor)
    own = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
    if not own or (status.st_size and not os.pread(descriptor, len(_SIGNED), 0).startswith(_SIGNED)):
        raise OSError(errno.EEXIST, "a file that is not a lock has the name of one")
    os.ftruncate(descriptor, 0)
    os.write(descriptor, b"%b%d on %b" % (_SIGNED, os.getpid(), platform.node().encode()))


def owner_of(path: Path) -> str:
    """Return whose a lock is, in words: ``process 123 on host``."""
    try:
        return path.read_text(encoding="utf-8", errors="replace") or "another process"
    except FileNotFoundError:  # it has just ended
        return "another process"
