"""How the replicas of a pool have fared."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class ReplicaReport:
    """One replica, while there was something to answer.

    Args:
        node: The machine it lives on.
        units: Units and jobs that it has answered.
        busy_s: Seconds spent computing those.
        present_s: Seconds that it could have.
    """

    node: str
    units: int = 0
    busy_s: float = 0.0
    present_s: float = 0.0

    @property
    def busy_share(self) -> float:
        """Share of its time spent computing, 0 … 1."""
        return min(1.0, self.busy_s / self.present_s) if self.present_s else 0.0


@dataclass
class PoolReport:
    """All replicas that a pool has had.

    Args:
        replicas: Each, in the order in which they came.
        units_redone: Units and jobs that had to be asked again, since a replica died, hung or failed.
        waiting_s: Seconds in which there was something to answer and no replica to answer it.
    """

    replicas: list[ReplicaReport] = field(default_factory=list)
    units_redone: int = 0
    waiting_s: float = 0.0

    @property
    def busy_share(self) -> float:
        """Share of the replicas' time spent computing, 0 … 1."""
        present_s = sum(replica.present_s for replica in self.replicas)
        return min(1.0, sum(replica.busy_s for replica in self.replicas) / present_s) if present_s else 0.0

    def as_json(self) -> dict[str, Any]:
        """For the record."""
        return {
            "replicas": [
                {"node": replica.node, "units": replica.units, "busy_share": replica.busy_share}
                for replica in self.replicas
            ],
            "units_redone": self.units_redone,
            "waiting_seconds": self.waiting_s,
        }
