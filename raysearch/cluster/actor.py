"""A replica in a separate process, on any machine of a Ray cluster."""

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

#: Packages that compute numbers. Their versions must be the same on every node.
_PACKAGES = ("raysearch", "torch", "transformers")


@dataclass(frozen=True)
class Recipe:
    """How to make a replica on any node.

    Args:
        make: Makes the replica from detached weights, or, for None, from the model's files.
        detached: The weights. They are sent to each node once, and all replicas of the node map that copy. None if
            every replica reads the model's files.
        versions: The versions of the driver's packages, by name.
    """

    make: Callable[[Detached | None], Replica]
    detached: Detached | None
    versions: Mapping[str, str]


class ReplicaActor:
    """A `Replica` in its own process, with a second thread that answers `works_for` and `pid` while it computes.

    The first call with a recipe makes the replica, not the constructor, so that the caller gets errors unchanged. The
    constructor starts to import the modules of the replica, which takes seconds.
    """

    def __init__(self) -> None:
        self._replica: Replica | None = None
        self._pool: str | None = None
        self._since = 0.0  # when the current or the last call of that pool began, by the clock of this process
        threading.Thread(target=_import_replica, daemon=True).start()

    def load(self, pool: str, recipe: list[Any]) -> str:
        """Make the replica, and return the name of its machine.

        Args:
            pool: The name of the calling pool.
            recipe: A list of one reference to a `Recipe`; a list, so that Ray does not resolve the reference.

        Returns:
            The host name of the machine.
        """
        self._replica_for(pool, recipe)
        return platform.node()

    def run(self, pool: str, recipe: list[Any], job: Job, calibration: list[Any]) -> Any:
        """Do a job of a pool, and return its result.

        Args:
            pool: The name of the calling pool.
            recipe: A list of one reference to a `Recipe`; a list, so that Ray does not resolve the reference.
            job: The job.
            calibration: A list of one reference to the job's calibration, which is resolved only if the replica does
                not have it; empty if the job needs none.

        Returns:
            The return value of `Job.run`.
        """
        replica = self._replica_for(pool, recipe)
        if calibration and job.calibration is not None and job.calibration not in replica.calibrations:
            replica.calibrations[job.calibration] = ray.get(calibration[0])
        return job.run(replica)

    @ray.method(concurrency_group="status")
    def works_for(self) -> tuple[str | None, float]:
        """Return the pool of the current or the last call, None before the first, and the seconds since that began."""
        return self._pool, time.monotonic() - self._since

    @ray.method(concurrency_group="status")
    def pid(self) -> int:
        """Return the process id of this actor."""
        return os.getpid()

    def _replica_for(self, pool: str, recipe: list[Any]) -> Replica:
        self._pool = pool
        self._since = time.monotonic()
        if self._replica is None:
            resolved: Recipe = ray.get(recipe[0])
            _check_versions(resolved.versions)
            self._replica = resolved.make(resolved.detached)
        return self._replica


def _import_replica() -> None:
    """Import the modules of a replica; collecting garbage among their million objects would add a sixth of the time."""
    gc.disable()
    try:
        import raysearch.evaluation.replica  # noqa: F401
    finally:
        gc.freeze()
        gc.enable()


def make_replica_in_actor(*args: Any) -> Replica:
    """Make a replica by `raysearch.evaluation.replica.make_replica`, which only the process of the actor imports."""
    from raysearch.evaluation.replica import make_replica

    return make_replica(*args)


def installed_versions(fused_head: bool = False) -> dict[str, str]:
    """Return the installed versions of the packages that compute numbers, and of the fused head if it is used."""
    names = (*_PACKAGES, "liger-kernel") if fused_head else _PACKAGES
    return {name: version_of(name) for name in names}


def _check_versions(driver_versions: Mapping[str, str]) -> None:
    """Refuse to compute with other versions than the driver's."""
    for name, version in driver_versions.items():
        try:
            installed = version_of(name)
        except importlib.metadata.PackageNotFoundError:
            installed = "not installed"
        if installed != version:
            raise UserError(
                f"the node {platform.node()} has {name} {installed}, but the search runs with {version}; "
                "install the same on both, or numbers could differ"
            )
