"""A replica in a process of its own, wherever in the cluster Ray puts it."""

from __future__ import annotations

import importlib.metadata
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray

from raysearch.errors import UserError

if TYPE_CHECKING:
    from raysearch.evaluation.replica import Replica
    from raysearch.evaluation.unit import Job, Task, UnitResult
    from raysearch.models.shared_weights import Packed

#: What computes numbers, and so must be the same on every node.
_PACKAGES = ("raysearch", "torch", "transformers")


@dataclass(frozen=True)
class Recipe:
    """How a replica is made, on any node.

    Args:
        make: Makes it from the packed model, or from where its files are if there is none.
        packed: The packed model. It travels to each node once, and all replicas there map the same copy of it.
        versions: Of the packages that the driver has.
    """

    make: Callable[[Packed | None], Replica]
    packed: Packed | None
    versions: Mapping[str, str]


class ReplicaActor:
    """A `Replica` in its own process, with a thread beside it that tells for whom it works.

    The replica is made by the first call that comes with its recipe, not by the constructor, so that errors arrive as
    they are.
    """

    def __init__(self) -> None:
        self._replica: Replica | None = None
        self._pool: str | None = None

    def prepare(self, pool: str, recipe: list[Any]) -> str:
        """Makes the replica before it is asked anything; gives the name of its machine."""
        self._pool = pool
        self._load(recipe)
        return socket.gethostname()

    def evaluate(self, pool: str, recipe: list[Any], unit: Task) -> UnitResult:
        """See `Replica.evaluate`."""
        self._pool = pool
        return self._load(recipe).evaluate(unit)

    def perform(self, pool: str, recipe: list[Any], job: Job) -> Any:
        """See `Job.run`."""
        self._pool = pool
        return job.run(self._load(recipe))

    @ray.method(concurrency_group="beside")
    def works_for(self) -> str | None:
        """The pool whose call it answers, or has answered last; None before its first."""
        return self._pool

    @ray.method(concurrency_group="beside")
    def pid(self) -> int:
        """The process it lives in."""
        return os.getpid()

    def _load(self, recipe: list[Any]) -> Replica:
        """Makes the replica once. The recipe's reference comes in a list, which Ray passes on as it is."""
        if self._replica is None:
            known: Recipe = ray.get(recipe[0])
            _check_versions(known.versions)
            self._replica = known.make(known.packed)
        return self._replica


def own_versions() -> dict[str, str]:
    """Of the packages that compute numbers, in this process."""
    return {name: importlib.metadata.version(name) for name in _PACKAGES}


def _check_versions(wanted: Mapping[str, str]) -> None:
    """Refuses to compute with other packages than the driver's."""
    for name, version in own_versions().items():
        if version != wanted[name]:
            raise UserError(
                f"the node {socket.gethostname()} has {name} {version}, but the search runs with {wanted[name]}; "
                "install the same on both, or numbers could differ"
            )
