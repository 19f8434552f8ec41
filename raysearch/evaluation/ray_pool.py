"""Replicas as Ray actors: the only place on the hot path that knows Ray.

Replicas pull units: whoever is idle gets the next, so load balances by itself. A replica that dies is started again by
Ray, and its unit handed to another; a unit that fails `MAX_ATTEMPTS` times ends the search with its cause.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayTaskError

from raysearch.errors import EvaluationError, UserError
from raysearch.evaluation.replica import Replica
from raysearch.evaluation.unit import MAX_ATTEMPTS, Job, Task, UnitResult, unit_failure
from raysearch.models.sharing import Packed

_Asked = TypeVar("_Asked", bound=Task | Job)

#: How long to leave an actor that is not available, and how often in a row at most: two minutes in all.
_REST_S, _MOST_RESTS = 0.2, 600

#: A reference to how a replica is made and to the packed weights, in a list so that Ray passes it on as it is.
_Parts = list[Any]


class ReplicaActor:
    """A `Replica` in its own process.

    It is made by the first call that comes with its parts, not by the constructor, so that errors arrive as they are,
    and so that it is made again after Ray has started a dead actor again.
    """

    def __init__(self) -> None:
        self._replica: Replica | None = None

    def load(self, parts: _Parts) -> Replica:
        """Makes the replica, around shared weights if there are any."""
        if self._replica is None:
            make_replica, packed = ray.get(parts[0])
            self._replica = make_replica(packed)
        return self._replica

    def prepare(self, parts: _Parts) -> None:
        """Makes the replica before it is asked anything."""
        self.load(parts)

    def evaluate(self, parts: _Parts, unit: Task) -> UnitResult:
        """See `Replica.evaluate`."""
        return self.load(parts).evaluate(unit)

    def perform(self, parts: _Parts, job: Job) -> Any:
        """See `Job.run`."""
        return job.run(self.load(parts))

    def pid(self) -> int:
        """The process it lives in."""
        return os.getpid()


@dataclass(frozen=True)
class Replicas:
    """What a pool in any process needs to use replica actors.

    Args:
        actors: Their handles.
        parts: What they are made of.
    """

    actors: Sequence[Any]
    parts: _Parts


class ReplicaActors:
    """A fixed number of replica actors, for any number of pools in this process and in others.

    Args:
        make_replica: Makes a replica in the actor's process from the packed model, or from disk if there is none.
        packed: The packed model, put into the object store once and mapped by every replica; None on accelerators.
        n_replicas: How many actors.
        cpus_per_replica: CPUs that Ray reserves for each.
        gpus_per_replica: GPUs that Ray reserves for each; fractions share a GPU.
        spare_cpus: CPUs that Ray is to have beside theirs, if it is started here.
    """

    def __init__(
        self,
        make_replica: Callable[[Packed | None], Replica],
        packed: Packed | None,
        n_replicas: int,
        cpus_per_replica: float,
        gpus_per_replica: float,
        spare_cpus: int = 0,
    ) -> None:
        self._owns_ray = not ray.is_initialized()
        if self._owns_ray:
            start_ray(n_replicas * cpus_per_replica + spare_cpus)
        parts = [ray.put((make_replica, packed))]  # kept: what nobody refers to is evicted
        actor_class = ray.remote(num_cpus=cpus_per_replica, num_gpus=gpus_per_replica, max_restarts=-1)(ReplicaActor)
        self.replicas = Replicas([actor_class.remote() for _ in range(n_replicas)], parts)

    def close(self) -> None:
        """Frees them, and Ray if it was started for them. Closing twice is harmless."""
        for actor in self.replicas.actors:
            ray.kill(actor)
        self.replicas = Replicas([], [])
        if self._owns_ray:
            ray.shutdown()
            self._owns_ray = False


class RayPool:
    """Hands units to replica actors, which other pools may use at the same time: each then gets its turn.

    Args:
        replicas: The actors.
        on_close: Called at the end, where the actors are this pool's own.
    """

    def __init__(self, replicas: Replicas, on_close: Callable[[], None] = lambda: None) -> None:
        self.n_replicas = len(replicas.actors)
        self._parts = replicas.parts
        self._on_close = on_close
        self._idle: list[Any] = []
        self._busy: dict[Any, tuple[Any, Any]] = {}  # call -> actor, its unit (None while it loads)
        self._resting: list[Any] = []  # actors that Ray is starting again
        self._deaths_while_loading = 0
        self._rests = 0  # in a row
        for actor in replicas.actors:
            self._load(actor)

    def run(self, units: Sequence[Task]) -> Iterator[tuple[Task, UnitResult]]:
        """See `Pool.run`."""
        return self._each(units, "evaluate")

    def perform(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Any]]:
        """See `Pool.perform`."""
        return self._each(jobs, "perform")

    def _each(self, units: Sequence[_Asked], method: str) -> Iterator[tuple[_Asked, Any]]:
        """Has a method of the actors answer every unit."""
        waiting = deque(units)
        attempts: Counter[_Asked] = Counter()
        answered = 0
        while answered < len(units):
            while waiting and self._idle:
                actor, unit = self._idle.pop(), waiting.popleft()
                self._busy[getattr(actor, method).remote(self._parts, unit)] = actor, unit
            done = self._wait()
            if done is None:
                continue
            actor, owned = self._busy.pop(done)
            try:
                result = ray.get(done)
            except RayActorError as error:
                self._replace(actor, owned is None, error)
                failure: BaseException = error
            except RayTaskError as error:
                failure = error.cause if isinstance(error.cause, BaseException) else error
                if isinstance(failure, UserError) or owned is None:
                    raise failure from error
                self._idle.append(actor)
            else:
                self._idle.append(actor)
                self._rests = 0
                if owned is not None:
                    answered += 1
                    yield owned, result
                continue
            if owned is not None:
                attempts[owned] += 1
                if attempts[owned] == MAX_ATTEMPTS:
                    raise EvaluationError(unit_failure(owned, failure)) from failure
                waiting.appendleft(owned)

    def close(self) -> None:
        """See `Pool.close`."""
        self._idle, self._busy, self._resting = [], {}, []
        self._on_close()

    def _load(self, actor: Any) -> None:
        self._busy[actor.prepare.remote(self._parts)] = actor, None

    def _wait(self) -> Any:
        """The next call that is done; None after a while if actors are resting, which are then asked to load again."""
        if self._resting and not self._busy:
            time.sleep(_REST_S)
        done, _ = ray.wait(list(self._busy), timeout=_REST_S if self._resting else None) if self._busy else ([], [])
        if not done:
            rested, self._resting = self._resting, []
            for actor in rested:
                self._load(actor)
        return done[0] if done else None

    def _replace(self, actor: Any, was_loading: bool, error: BaseException) -> None:
        """Has Ray's restart of a dead replica waited for, unless replicas keep dying before they have loaded."""
        if isinstance(error, ActorUnavailableError) and "is restarting" in str(error):
            self._rests += 1  # no death of its own: it is still being started again
        else:
            self._deaths_while_loading = self._deaths_while_loading + 1 if was_loading else 0
        if self._deaths_while_loading == MAX_ATTEMPTS * self.n_replicas or self._rests == _MOST_RESTS:
            raise EvaluationError(f"replicas die while they load the model; the last cause: {error}") from error
        self._resting.append(actor)


def start_ray(cpus: float) -> None:
    """Starts Ray on this machine, quietly, with room for so many CPUs even where there are fewer cores.

    Ray puts its own handler in the place of the one for SIGTERM, which would end the process with no word of farewell.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    on_termination = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            address="local",
            num_cpus=max(os.cpu_count() or 1, int(cpus + 0.999)),
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except SystemExit as error:  # that handler, while Ray starts
        raise KeyboardInterrupt from error
    finally:
        if callable(on_termination) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, on_termination)
