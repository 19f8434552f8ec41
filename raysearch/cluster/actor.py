"""A replica in a process of its own, wherever in the cluster Ray puts it."""

from __future__ import annotations

import gc
import importlib.metadata
import os
import platform
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray

from raysearch.core.versions import version_of
from raysearch.errors import UserError

if TYPE_CHECKING:
    from raysearch.evaluation.replica import Replica
    from raysearch.evaluation.unit import Job
    from raysearch.models.shared_weights import Detached

#: These compute numbers, and so must be the same on every node.
_PACKAGES = ("raysearch", "torch", "transformers")


@dataclass(frozen=True)
class Recipe:
    """How a replica is made, on any node. Tensors travel to each node once, and all replicas there map that copy."""

    make: Callable[[Detached | None], Replica]  #: without a detached model, from the model's files
    detached: Detached | None
    versions: Mapping[str, str]  #: of the driver's packages


class ReplicaActor:
    """A `Replica` in its own process, with a second thread that says for which pool it works.

    The replica is made by the first call that comes with its recipe, not by the constructor, so that errors arrive as
    they are. What it needs takes seconds to import, and that begins at once.
    """

    def __init__(self) -> None:
        self._replica: Replica | None = None
        self._pool: str | None = None
        self._since = 0.0  # of its clock, when it began what it does for that pool, or did last
        threading.Thread(target=_import_replica, daemon=True).start()

    def load(self, pool: str, recipe: list[Any]) -> str:
        """Make the replica, and return the name of its machine."""
        self._replica_for(pool, recipe)
        return platform.node()

    def run(self, pool: str, recipe: list[Any], job: Job, calibration: list[Any]) -> Any:
        """Do a job of a pool. References come in lists, which Ray passes on as they are.

        That to the calibration of the job is followed if the replica lacks it; the list may be empty.
        """
        replica = self._replica_for(pool, recipe)
        if calibration and job.calibration is not None and job.calibration not in replica.calibrations:
            replica.calibrations[job.calibration] = ray.get(calibration[0])
        return job.run(replica)

    @ray.method(concurrency_group="beside")
    def works_for(self) -> tuple[str | None, float]:
        """Return the pool whose call it answers, or has answered last, and for how long in s; None before the first."""
        return self._pool, time.monotonic() - self._since

    @ray.method(concurrency_group="beside")
    def pid(self) -> int:
        """Return the number of its process."""
        return os.getpid()

    def _replica_for(self, pool: str, recipe: list[Any]) -> Replica:
        self._pool, self._since = pool, time.monotonic()
        if self._replica is None:
            known: Recipe = ray.get(recipe[0])
            _check_versions(known.versions)
            self._replica = known.make(known.detached)
        return self._replica


def _import_replica() -> None:
    """Import what a replica needs, and look for no garbage among its million objects: that takes a sixth as long."""
    gc.disable()
    try:
        import raysearch.evaluation.replica  # noqa: F401
    finally:
        gc.freeze()
        gc.enable()


def make_there(*args: Any) -> Replica:
    """Make a replica by `raysearch.evaluation.replica.make_replica`, which only the replica's process imports."""
    from raysearch.evaluation.replica import make_replica

    return make_replica(*args)


def own_versions(fused_head: bool = False) -> dict[str, str]:
    """Return our versions of the packages that compute numbers, and of the fused head if it is used."""
    names = (*_PACKAGES, "liger-kernel") if fused_head else _PACKAGES
    return {name: version_of(name) for name in names}


def _check_versions(wanted: Mapping[str, str]) -> None:
    """Refuse to compute with other packages than the driver's."""
    for name, version in wanted.items():
        try:
            own = version_of(name)
        except importlib.metadata.PackageNotFoundError:
            own = "not installed"
        if own != version:
            raise UserError(
                f"the node {platform.node()} has {name} {own}, but the search runs with {version}; "
                "install the same on both, or numbers could differ"
            )
