"""Makes replica actors while there is work for them, and ends them when there has been none for a while.

Pools, in this process or in others, sync with the fleet about once a second: each says how many actors it wants and
which it has lost, and gets those that there are. Actors that Ray has no room for yet wait, and the autoscaler of a
cluster sees them as demand.
"""

from __future__ import annotations

import contextlib
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

_SILENCE_S = 120.0  # after which a pool that has not synced is gone, and its demand with it
_ANSWER_S = 2.0  # that a display waits for the process of a shared fleet


@dataclass(frozen=True)
class Needs:
    """The resources that Ray reserves for a replica; replicas with a fraction of a GPU share one."""

    cpus: float
    gpus: float


def make_replica_actor(needs: Needs) -> Any:
    """Make an actor. Ray starts it when there is room, and never again: its fleet makes another instead."""
    remote: Any = ray.remote  # its annotations do not know of concurrency groups
    reserved = {"num_cpus": needs.cpus, "num_gpus": needs.gpus}
    return remote(max_restarts=0, concurrency_groups={"beside": 1}, **reserved)(ReplicaActor).remote()


class Fleet:
    """The actors that this process has made.

    Args:
        least: How many are made at once, and stay if there is nothing to do.
        most: How many there are at most.
        idle_s: Seconds after which an actor that is not needed is ended.
    """

    def __init__(
        self,
        least: int,
        most: int,
        needs: Needs,
        idle_s: float,
        make_actor: Callable[[Needs], Any] = make_replica_actor,
    ) -> None:
        self._least, self._most, self._needs, self._idle_s, self._make_actor = least, most, needs, idle_s, make_actor
        self._members: dict[str, Any] = {}
        self._pools: dict[str, tuple[Demand, float]] = {}  # and when it was heard
        self._enough_since: float | None = None  # since when there are more than wanted
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._reconcile()
        if least < most:
            threading.Thread(target=self._watch, name="fleet", daemon=True).start()

    def sync(self, pool: str, demand: Demand) -> Mapping[str, Any]:
        """Take what a pool needs, and return the actors by name, some of which Ray may not have started yet."""
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
        """Return whether pools have work, and no actor has loaded the model."""
        with self._lock:
            demands = [demand for demand, _ in self._pools.values()]
        return any(one.wanted for one in demands) and not any(one.ready for one in demands)

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
        """Make as many actors as are wanted, or end those that have been too many for long enough."""
        now = time.monotonic()
        self._pools = {name: told for name, told in self._pools.items() if now - told[1] < _SILENCE_S}
        demands = [demand for demand, _ in self._pools.values()]
        wanted = sum(demand.wanted for demand in demands)
        target = min(max(wanted, self._least), self._most)
        while len(self._members) < target:
            self._members[uuid.uuid4().hex] = self._make_actor(self._needs)
        if len(self._members) <= target:
            self._enough_since = None
        elif self._enough_since is None:
            self._enough_since = now
        elif now - self._enough_since >= self._idle_s:
            busy = {name for demand in demands for name in demand.busy}
            idle = [name for name in reversed(self._members) if name not in busy]  # the newest first
            for name in idle[: len(self._members) - target]:
                ray.kill(self._members.pop(name))


class RemoteFleet:
    """A fleet in an actor of its own, for pools in several processes; those that outlive it are interrupted."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def sync(self, pool: str, demand: Demand) -> Mapping[str, Any]:
        """Sync as `Fleet.sync` does."""
        try:
            return ray.get(self._actor.sync.remote(pool, demand))
        except ActorDiedError as error:  # Ray starts it again, unless its driver has closed it or has died
            raise KeyboardInterrupt from error

    def is_awaited(self) -> bool:
        """Return what `Fleet.is_awaited` does; False if its process has died or is starting, which pools find out."""
        with contextlib.suppress(RayError):
            return bool(ray.get(self._actor.is_awaited.remote(), timeout=_ANSWER_S))
        return False

    def close(self) -> None:
        """End all actors, and the fleet's own."""
        ray.get(self._actor.close.remote())
        ray.kill(self._actor)


def shared_fleet(least: int, most: int, needs: Needs, idle_s: float) -> RemoteFleet:
    """Make a fleet for pools in any process. It lives on the driver's node and ends with it.

    If its process dies, its replicas die with it; Ray starts it again, and it makes others.
    """
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    remote: Any = ray.remote  # its annotations do not know of node affinity
    lasting = {"num_cpus": 0, "scheduling_strategy": here, "max_restarts": -1, "max_task_retries": -1}
    return RemoteFleet(remote(**lasting)(Fleet).remote(least, most, needs, idle_s))
