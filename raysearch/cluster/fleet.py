"""How many replicas there are, and which: more while there is work for them, fewer when that has been done for a while.

A fleet makes actors and lets them go; pools, in this process or in others, use them. A pool tells what it wants and
what it has lost as often as it looks for news. Actors that Ray has no room for yet wait, and are what the autoscaler
of a cluster sees as demand; those that are let go free their nodes.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raysearch.cluster.actor import ReplicaActor
from raysearch.cluster.bounds import Bounds

#: A pool that has not been heard of for so long is gone, with its wishes.
_SILENCE_S = 120.0


@dataclass(frozen=True)
class Needs:
    """What Ray reserves for a replica.

    Args:
        cpus: CPUs.
        gpus: GPUs; fractions share one.
    """

    cpus: float
    gpus: float

    def __str__(self) -> str:
        return f"{self.cpus:g} CPUs" + (f" and {self.gpus:g} GPUs" if self.gpus else "")


@dataclass(frozen=True)
class _Demand:
    wanted: int
    busy: Collection[str]
    heard: float


class Membership(Protocol):
    """Who may be asked."""

    def meet(self, pool: str, wanted: int, busy: Collection[str], lost: Collection[str]) -> Mapping[str, Any]:
        """Tells how a pool stands, and gets the replicas that there are now.

        Args:
            pool: The pool's name.
            wanted: How many replicas it has work for.
            busy: The names of those that are working for it.
            lost: The names of those that have died, or are to.

        Returns:
            Actors by name, some of which Ray may not have placed yet.
        """
        ...


class Fleet:
    """Makes and keeps replica actors.

    Args:
        bounds: How many.
        needs: What each takes.
        idle_s: Seconds after which one more than is wanted is let go.
        make_actor: Makes one.
    """

    def __init__(
        self, bounds: Bounds, needs: Needs, idle_s: float, make_actor: Callable[[Needs], Any] | None = None
    ) -> None:
        self._bounds, self._needs, self._idle_s = bounds, needs, idle_s
        self._make_actor = make_actor or make_replica_actor
        self._members: dict[str, Any] = {}
        self._pools: dict[str, _Demand] = {}
        self._enough_since: float | None = None  # since when there are more than wanted
        self._lock = threading.Lock()
        self._closed = threading.Event()
        if bounds.min < bounds.max:
            threading.Thread(target=self._watch, name="fleet", daemon=True).start()

    def meet(self, pool: str, wanted: int, busy: Collection[str], lost: Collection[str] = ()) -> Mapping[str, Any]:
        """See `Membership.meet`."""
        with self._lock:
            if self._closed.is_set():
                return {}
            for name in lost:
                if name in self._members:
                    ray.kill(self._members.pop(name))
            self._pools[pool] = _Demand(wanted, busy, time.monotonic())
            self._reconcile()
            return dict(self._members)

    def close(self) -> None:
        """Lets all of them go. Closing twice is harmless."""
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
        """Makes as many as are wanted, or lets go what has been too many for long enough."""
        now = time.monotonic()
        self._pools = {name: wish for name, wish in self._pools.items() if now - wish.heard < _SILENCE_S}
        wanted = sum(wish.wanted for wish in self._pools.values())
        target = min(max(wanted, self._bounds.min), self._bounds.max)
        while len(self._members) < target:
            self._members[uuid.uuid4().hex] = self._make_actor(self._needs)
        if len(self._members) <= target:
            self._enough_since = None
        elif self._enough_since is None:
            self._enough_since = now
        elif now - self._enough_since >= self._idle_s:
            busy = {name for wish in self._pools.values() for name in wish.busy}
            idle = [name for name in reversed(self._members) if name not in busy]  # the newest first
            for name in idle[: len(self._members) - target]:
                ray.kill(self._members.pop(name))


class RemoteFleet:
    """A fleet that lives in an actor, for pools in several processes.

    Args:
        actor: Its handle.
    """

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def meet(self, pool: str, wanted: int, busy: Collection[str], lost: Collection[str]) -> Mapping[str, Any]:
        """See `Membership.meet`."""
        return ray.get(self._actor.meet.remote(pool, wanted, list(busy), list(lost)))

    def close(self) -> None:
        """See `Fleet.close`."""
        ray.get(self._actor.close.remote())
        ray.kill(self._actor)


def shared_fleet(bounds: Bounds, needs: Needs, idle_s: float) -> RemoteFleet:
    """A fleet for pools in any process, beside this one: it ends when its node, which is the driver's, does.

    Where its process dies, its replicas die with it; Ray starts it again, and it makes others for those who ask.
    """
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    remote: Any = ray.remote  # its annotations do not know of node affinity
    lasting = {"num_cpus": 0, "scheduling_strategy": here, "max_restarts": -1, "max_task_retries": -1}
    return RemoteFleet(remote(**lasting)(Fleet).remote(bounds, needs, idle_s))


def make_replica_actor(needs: Needs) -> Any:
    """An actor that Ray places when there is room, and does not start again: its fleet makes another instead."""
    remote: Any = ray.remote  # its annotations do not know of concurrency groups
    reserved = {"num_cpus": needs.cpus, "num_gpus": needs.gpus}
    return remote(max_restarts=0, concurrency_groups={"beside": 1}, **reserved)(ReplicaActor).remote()
