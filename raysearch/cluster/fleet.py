"""Makes replica actors while there is work for them, and ends actors that have been idle for a while.

Pools, in this process or in others, sync with the fleet about once a second: each pool reports how many actors it can
use and which it has lost, and gets the current actors. Actors for which Ray has no resources yet wait, and the
autoscaler of a cluster sees them as demand.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raysearch.cluster.actor import ReplicaActor
from raysearch.cluster.scheduler import Demand

_log = logging.getLogger(__name__)
_SILENCE_S = 120.0  # a pool that has not synced for so long is forgotten, with its demand
_ANSWER_S = 2.0  # how long a display waits for the process of a shared fleet


@dataclass(frozen=True)
class Needs:
    """The resources that Ray reserves for a replica.

    Args:
        cpus: The number of CPUs.
        gpus: The number of GPUs; replicas with a fraction share a GPU.
    """

    cpus: float
    gpus: float


def make_replica_actor(needs: Needs) -> Any:
    """Make an actor. Ray starts it when there are resources, and never restarts it: its fleet makes another instead."""
    remote: Any = ray.remote  # the annotations of Ray lack concurrency groups
    reserved = {"num_cpus": needs.cpus, "num_gpus": needs.gpus}
    return remote(max_restarts=0, concurrency_groups={"status": 1}, **reserved)(ReplicaActor).remote()


class Fleet:
    """The actors that this process has made.

    Args:
        least: How many actors are made at once, and stay if there is nothing to do.
        most: The largest number of actors.
        needs: The resources of each actor.
        idle_s: Seconds after which an actor that is not needed is ended.
        make_actor: Makes an actor.
    """

    def __init__(
        self,
        least: int,
        most: int,
        needs: Needs,
        idle_s: float,
        make_actor: Callable[[Needs], Any] = make_replica_actor,
    ) -> None:
        self._least = least
        self._most = most
        self._needs = needs
        self._idle_s = idle_s
        self._make_actor = make_actor
        self._members: dict[str, Any] = {}
        self._pools: dict[str, tuple[Demand, float]] = {}  # the last demand of each pool, and its time
        self._too_many_since: float | None = None  # since when there are more actors than pools can use
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._reconcile()
        if least < most:
            threading.Thread(target=self._watch, name="fleet", daemon=True).start()

    def sync(self, pool: str, demand: Demand) -> Mapping[str, Any]:
        """Store the demand of a pool, and return the current actors.

        Args:
            pool: The name of the pool.
            demand: Its demand, which replaces the last one.

        Returns:
            The actors, by name. Ray may not have started some of them yet. Empty if the fleet is closed.
        """
        with self._lock:
            if self._closed.is_set():
                return {}
            for name in demand.lost:
                if name in self._members:
                    ray.kill(self._members.pop(name))
            self._pools[pool] = demand, time.monotonic()
            self._reconcile()
            return dict(self._members)

    def is_awaited(self) -> bool:
        """Return whether pools have work and no actor has loaded the model."""
        with self._lock:
            demands = [demand for demand, _ in self._pools.values()]
        return any(demand.n_replicas for demand in demands) and not any(demand.ready for demand in demands)

    def close(self) -> None:
        """End all actors. Closing twice is harmless."""
        self._closed.set()
        with self._lock:
            for actor in self._members.values():
                ray.kill(actor)
            self._members = {}

    def _watch(self) -> None:
        while not self._closed.wait(min(1.0, self._idle_s / 2 + 0.01)):
            with self._lock:
                if not self._closed.is_set():
                    self._reconcile()

    def _reconcile(self) -> None:
        """Make as many actors as pools can use, or end superfluous actors that have been idle for long enough."""
        now = time.monotonic()
        self._pools = {
            name: (demand, synced) for name, (demand, synced) in self._pools.items() if now - synced < _SILENCE_S
        }
        demands = [demand for demand, _ in self._pools.values()]
        target = min(max(sum(demand.n_replicas for demand in demands), self._least), self._most)
        while len(self._members) < target:
            name = uuid.uuid4().hex
            self._members[name] = self._make_actor(self._needs)
            _log.info("replica %s starts", name)
        if len(self._members) <= target:
            self._too_many_since = None
        elif self._too_many_since is None:
            self._too_many_since = now
        elif now - self._too_many_since >= self._idle_s:
            busy = {name for demand in demands for name in demand.busy}
            idle = [name for name in reversed(self._members) if name not in busy]  # newest first
            for name in idle[: len(self._members) - target]:
                ray.kill(self._members.pop(name))
                _log.info("replica %s ends: it was idle", name)


class RemoteFleet:
    """A fleet in a separate actor, for pools in several processes. It interrupts pools that outlive it.

    Args:
        actor: The actor, which has the methods of `Fleet`.
    """

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def sync(self, pool: str, demand: Demand) -> Mapping[str, Any]:
        """Store the demand of a pool, and return the current actors, as `Fleet.sync` does.

        Args:
            pool: The name of the pool.
            demand: Its demand, which replaces the last one.

        Returns:
            Ray's handle of each actor, by the actor's name.

        Raises:
            KeyboardInterrupt: The fleet has ended.
        """
        try:
            return ray.get(self._actor.sync.remote(pool, demand))
        except ActorDiedError as error:  # Ray restarts the actor, unless its driver has closed it or has died
            raise KeyboardInterrupt from error

    def is_awaited(self) -> bool:
        """Return `Fleet.is_awaited`; False if its process has died or is starting, which pools will notice."""
        with contextlib.suppress(RayError):
            return bool(ray.get(self._actor.is_awaited.remote(), timeout=_ANSWER_S))
        return False

    def close(self) -> None:
        """End all actors, and the actor of the fleet."""
        ray.get(self._actor.close.remote())
        ray.kill(self._actor)


def shared_fleet(least: int, most: int, needs: Needs, idle_s: float) -> RemoteFleet:
    """Make a fleet for pools in any process. It runs on the driver's node and ends with the driver.

    If its process dies, its replicas die with it. Ray restarts the process, which makes new replicas.

    Args:
        least: How many actors are made at once, and stay if there is nothing to do.
        most: The largest number of actors.
        needs: The resources of each actor.
        idle_s: Seconds after which an actor that is not needed is ended.

    Returns:
        A handle of the fleet, which can be pickled and used in any process of the cluster.
    """
    this_node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    remote: Any = ray.remote  # the annotations of Ray lack node affinity
    options = {"num_cpus": 0, "scheduling_strategy": this_node, "max_restarts": -1, "max_task_retries": -1}
    return RemoteFleet(remote(**options)(Fleet).remote(least, most, needs, idle_s))
