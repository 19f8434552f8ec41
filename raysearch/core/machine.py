"""The cores and the memory that this process may use."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def n_cores() -> int:
    """Return how many cores this process may use: fewer than there are, where a container or an affinity says so."""
    import joblib  # here, as psutil below: most commands need neither

    return joblib.cpu_count()


def memory_bytes() -> int:
    """Return the memory that may be used here: what is free on the machine, or the limit of a container."""
    import psutil

    free = psutil.virtual_memory().available
    for limit in ("memory.max", "memory/memory.limit_in_bytes"):  # of cgroups, version 2 and 1
        with suppress(OSError, ValueError):  # it is missing, or says that there is none
            return min(free, int((_CGROUP / limit).read_text()))
    return free
