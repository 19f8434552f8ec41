"""A Ray that does not start: it records how it would have been started and left."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from raysearch.cluster.watch import RayProcesses


class SimulatedProcesses(RayProcesses):
    """Processes of a Ray, which die when a test says so."""

    checked_at_once = True

    def __init__(self) -> None:
        self.dead: str | None = None

    @override
    def find_dead(self) -> str | None:
        return self.dead


class SimulatedRay:
    """Takes the place of the functions of Ray that start and leave it.

    Attributes:
        starts: The options of each start.
        errors: The errors of the next starts, the first one first.
        shutdowns: How many times Ray was left.
        processes: The processes of Ray.
    """

    def __init__(self) -> None:
        self.starts: list[dict[str, Any]] = []
        self.errors: list[Exception] = []
        self.shutdowns = 0
        self.processes = SimulatedProcesses()

    def init(self, **options: Any) -> None:
        self.starts.append(options)
        if self.errors:
            raise self.errors.pop(0)

    def shutdown(self) -> None:
        self.shutdowns += 1
