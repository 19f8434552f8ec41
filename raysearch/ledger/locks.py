"""Locks between processes that a dying process lets go, however it dies."""

from __future__ import annotations

import fcntl
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


class Taken(Exception):
    """Somebody else has the lock.

    Args:
        owner: Who, in words.
    """

    def __init__(self, owner: str) -> None:
        super().__init__(owner)
        self.owner = owner


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Waits for, and then holds, an operating-system lock on a file, which is made if need be and stays."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def owned(path: Path, wait: bool) -> Iterator[None]:
    """Holds a lock that says whose it is, on a file that goes with it.

    Args:
        path: The file.
        wait: Whether to wait for it.

    Raises:
        Taken: Somebody else has it, and it is not waited for.
    """
    while True:
        with path.open("a+", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise Taken(file.read() or "another process") from None
            if not _is_at(path, file):
                continue  # its owner has just taken it away
            try:
                file.truncate(0)
                file.write(f"process {os.getpid()} on {platform.node()}")
                file.flush()
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def remove_if_stale(path: Path) -> bool:
    """Whether nobody holds an owned lock; the file that a dead owner has left behind goes."""
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(path, file):
                path.unlink()
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False
    return True


def _is_at(path: Path, file: IO[str]) -> bool:
    """Whether an open file is the one found at a path."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
