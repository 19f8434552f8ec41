"""The cores and the memory that this process may use."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
#: The files of the limit and of the usage of memory, of cgroups version 2 and 1.
_MEMORY = ("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")


def n_cores() -> int:
    """Return the number of cores that this process may use, within the limits of a container and of CPU affinity."""
    import joblib  # imported when needed, like psutil below, because most commands need neither

    return joblib.cpu_count()


def memory_bytes() -> int:
    """Return the memory that this process may still allocate: that of the machine, or less in a container."""
    import psutil

    free = psutil.virtual_memory().available
    for limit, usage in _MEMORY:
        with suppress(OSError, ValueError):  # the file is missing, or contains ``max``
            unused = int((_CGROUP / limit).read_text()) - int((_CGROUP / usage).read_text())
            stat = (_CGROUP / usage).with_name("memory.stat").read_text()
            counts = dict(line.split() for line in stat.splitlines())
            # The kernel frees cached files that were not read recently; version 1 also counts child groups.
            reclaimable = int(counts.get("total_inactive_file", counts.get("inactive_file", 0)))
            return min(free, unused + reclaimable)
    return free
