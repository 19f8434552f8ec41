"""A lock between processes that a dying process lets go, however it dies."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Waits for, and then holds, an operating-system lock on a file, which is made if need be and stays."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
