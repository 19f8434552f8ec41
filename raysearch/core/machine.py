"""The cores and the memory that this process may use."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
#: The files of a limit and of what is used, of cgroups version 2 and 1.
_MEMORY = ("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")


def n_cores() -> int:
    """Return how many cores this process may use: fewer than there are, where a container or an affinity says so."""
    import joblib  # here, as psutil below: most commands need neither

    return joblib.cpu_count()


def memory_bytes() -> int:
    """Return the memory that may still be used here: what is free on the machine, or within a container's limit."""
    import psutil

    free = psutil.virtual_memory().available
    for limit, usage in _MEMORY:
        with suppress(OSError, ValueError):  # it is missing, or says that there is none
            left = int((_CGROUP / limit).read_text()) - int((_CGROUP / usage).read_text())
            stat = (_CGROUP / usage).with_name("memory.stat").read_text()
            counts = dict(line.split() for line in stat.splitlines())
            # Copies of files that have not been read of late are given back; version 1 also counts children.
            return min(free, left + int(counts.get("total_inactive_file", counts.get("inactive_file", 0))))
    return free
