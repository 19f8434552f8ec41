"""Replicas as Ray actors: the only place on the hot path that knows Ray.

Replicas pull units: whoever is idle gets the next, so load balances by itself. A replica that dies is replaced and its
unit handed to another; a unit that fails `MAX_ATTEMPTS` times ends the search with its cause.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from raysearch.errors import EvaluationError, UserError
from raysearch.evaluation.replica import Replica
from raysearch.evaluation.unit import MAX_ATTEMPTS, Task, UnitResult, unit_failure
from raysearch.models.sharing import Packed


class ReplicaActor:
    """A `Replica` in its own process. Loading is a call, not the constructor, so that its errors arrive as they are."""

    def load(self, make_replica: Callable[[Packed | None], Replica], packed: Packed | None) -> None:
        """Makes the replica, around shared weights if there are any."""
        self._replica = make_replica(packed)

    def evaluate(self, unit: Task) -> UnitResult:
        """See `Replica.evaluate`."""
        return self._replica.evaluate(unit)

    def pid(self) -> int:
        """The process it lives in."""
        return os.getpid()


class RayPool:
    """A fixed number of replica actors.

    Args:
        make_replica: Makes a replica in the actor's process from the packed model, or from disk if there is none.
        packed: The packed model, put into the object store once and mapped by every replica; None on accelerators.
        n_replicas: How many actors.
        cpus_per_replica: CPUs that Ray reserves for each.
        gpus_per_replica: GPUs that Ray reserves for each; fractions share a GPU.
    """

    def __init__(
        self,
        make_replica: Callable[[Packed | None], Replica],
        packed: Packed | None,
        n_replicas: int,
        cpus_per_replica: float,
        gpus_per_replica: float,
    ) -> None:
        self.n_replicas = n_replicas
        self._owns_ray = not ray.is_initialized()
        if self._owns_ray:
            _start_ray(n_replicas * cpus_per_replica)
        self._make_replica = make_replica
        self._packed = ray.put(packed)
        self._actor_class = ray.remote(num_cpus=cpus_per_replica, num_gpus=gpus_per_replica)(ReplicaActor)
        self._idle: list[Any] = []
        self._busy: dict[Any, tuple[Any, Task | None]] = {}  # call -> actor, its unit (None while it loads)
        self._deaths_while_loading = 0
        for _ in range(n_replicas):
            self._start_replica()

    def run(self, units: Sequence[Task]) -> Iterator[tuple[Task, UnitResult]]:
        """See `Pool.run`."""
        waiting = deque(units)
        attempts: Counter[Task] = Counter()
        answered = 0
        while answered < len(units):
            while waiting and self._idle:
                actor, unit = self._idle.pop(), waiting.popleft()
                self._busy[actor.evaluate.remote(unit)] = actor, unit
            done, _ = ray.wait(list(self._busy), num_returns=1)
            actor, owned = self._busy.pop(done[0])
            try:
                result = ray.get(done[0])
            except RayActorError as error:
                self._replace(owned, error)
                failure: BaseException = error
            except RayTaskError as error:
                failure = error.cause if isinstance(error.cause, BaseException) else error
                if isinstance(failure, UserError) or owned is None:
                    raise failure from error
                self._idle.append(actor)
            else:
                self._idle.append(actor)
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
        for actor in [*self._idle, *(actor for actor, _ in self._busy.values())]:
            ray.kill(actor)
        self._idle, self._busy = [], {}
        if self._owns_ray:
            ray.shutdown()
            self._owns_ray = False

    def _start_replica(self) -> None:
        actor: Any = self._actor_class.remote()
        self._busy[actor.load.remote(self._make_replica, self._packed)] = actor, None

    def _replace(self, owned: Task | None, error: BaseException) -> None:
        """Starts another replica for a dead one, unless replicas keep dying before they have loaded."""
        self._deaths_while_loading = self._deaths_while_loading + 1 if owned is None else 0
        if self._deaths_while_loading == MAX_ATTEMPTS * self.n_replicas:
            raise EvaluationError(f"replicas die while they load the model; the last cause: {error}") from error
        self._start_replica()


def _start_ray(cpus: float) -> None:
    """Starts Ray on this machine, quietly, with room for the replicas even where there are fewer cores.

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
