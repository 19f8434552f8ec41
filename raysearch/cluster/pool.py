"""The pool whose replicas are Ray actors. A `Scheduler` decides what to do; this module only calls Ray."""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from typing_extensions import override

from raysearch.calibration.calibration import Calibration
from raysearch.cluster.fleet import Fleet, RemoteFleet
from raysearch.cluster.ray_cluster import RayCluster
from raysearch.cluster.scheduler import SYNC_S, Call, Scheduler
from raysearch.evaluation.pool import Cutter, Pool
from raysearch.evaluation.unit import JobT
from raysearch.text.sentences import first_line, last_line

_log = logging.getLogger(__name__)
_ANSWER_S = 10.0  # how long a replica may take to report its status


@dataclass(frozen=True)
class Replicas:
    """Everything that a pool in any process needs to use replica actors.

    Args:
        fleet: Makes and ends the actors.
        recipe: A list of one reference to the `Recipe` of the replicas; a list, so that Ray does not resolve it.
        most: The largest number of actors.
        unit_timeout_s: The time limit of units (`raysearch.cluster.scheduler.TimeoutPolicy`).
    """

    fleet: Fleet | RemoteFleet
    recipe: list[Any]
    most: int
    unit_timeout_s: float | Literal["auto"] = "auto"


class StartedReplicas:
    """Replicas that this process has started, and must end.

    Args:
        replicas: The actors, for any number of pools.
        cluster: The cluster on which they run.
    """

    def __init__(self, replicas: Replicas, cluster: RayCluster) -> None:
        self.replicas = replicas
        self.cluster = cluster
        self._is_closed = False

    def close(self) -> None:
        """End the actors, and free the weights that were sent to them. Closing twice is harmless."""
        if self._is_closed:
            return
        self._is_closed = True
        self.replicas.recipe.clear()
        if not self.cluster.has_died:  # otherwise they are dead, and calls of Ray hang
            self.replicas.fleet.close()


class RayPool(Pool):
    """A pool of replica actors, which other pools may use at the same time.

    Args:
        replicas: The actors.
        started: The same actors, if only this pool uses them: it ends them when it is closed, and raises an error as
            soon as Ray has died.
    """

    def __init__(self, replicas: Replicas, started: StartedReplicas | None = None) -> None:
        self._fleet = replicas.fleet
        self._recipe = list(replicas.recipe)
        self._started = started
        self._scheduler = Scheduler(replicas.unit_timeout_s)
        self.stats = self._scheduler.stats
        self._name = uuid.uuid4().hex
        self._actors: Mapping[str, Any] = {}
        self._calls: dict[Any, Call] = {}  # by the reference to their result
        #: Loading calls, with a reference that is ready once the actor has a process.
        self._unplaced: dict[Call, Any] = {}
        #: References, which actors resolve if they do not have the calibration.
        self._calibrations: dict[str | None, list[Any]] = {}

    @property
    @override
    def n_replicas(self) -> int:
        return self._scheduler.n_replicas

    @override
    def run(
        self, jobs: Sequence[JobT], calibrations: Sequence[Calibration] = (), cutter: Cutter | None = None
    ) -> Iterator[tuple[JobT, Any] | None]:
        self._check()
        for calibration in calibrations:
            if calibration.fingerprint not in self._calibrations:
                self._calibrations[calibration.fingerprint] = [ray.put(calibration)]
        self._scheduler.begin(jobs, cutter, time.monotonic())
        while not self._scheduler.is_done:
            self._check()
            if self._scheduler.must_sync(time.monotonic()):
                self._sync()
            self._assign()
            answer = self._wait()
            self._assign()  # before the caller writes the answer to the ledger, so that no replica waits for that
            yield answer
        self._sync()

    @override
    def close(self) -> None:
        self._actors = {}
        self._calls = {}
        self._unplaced = {}
        self._calibrations = {}
        self._recipe = []
        if self._started is not None:
            self._started.close()

    def _check(self) -> None:
        """Raise an `EvaluationError` if Ray has died, and the replicas with it."""
        if self._started is not None:
            self._started.cluster.check()

    def _sync(self) -> None:
        """Send the demand to the fleet, and make new replicas load the model."""
        self._actors = self._fleet.sync(self._name, self._scheduler.demand())
        for call in self._scheduler.sync(self._actors, time.monotonic()):
            actor = self._actors[call.replica]
            self._calls[actor.load.remote(self._name, self._recipe)] = call
            self._unplaced[call] = actor.pid.remote()

    def _assign(self) -> None:
        """Give waiting jobs to idle replicas."""
        for call in self._scheduler.assign(time.monotonic()):
            actor = self._actors[call.replica]
            calibration = self._calibrations.get(call.job.calibration, [])
            self._calls[actor.run.remote(self._name, self._recipe, call.job, calibration)] = call

    def _wait(self) -> tuple[Any, Any] | None:
        """Return the next job of the round that is done, with its result; None if none is done after a while."""
        if not self._calls:
            time.sleep(SYNC_S)  # there is no work, or no replica yet
        ready_calls, _ = ray.wait(list(self._calls), timeout=SYNC_S) if self._calls else ([], [])
        now = time.monotonic()
        self._scheduler.account_time(now)
        if not ready_calls:
            self._end_overdue(now)
            return None
        call = self._calls.pop(ready_calls[0])
        self._unplaced.pop(call, None)
        try:
            result = ray.get(ready_calls[0])
        except RayTaskError as error:
            _log.info("a unit failed on replica %s: %s", call.replica, last_line(error))
            self._scheduler.failed(call, error.cause if isinstance(error.cause, BaseException) else error)
        except RayError as error:  # the replica or its node died, or its answer was lost
            _log.info("replica %s is lost, so its unit runs again: %s", call.replica, first_line(error))
            self._drop_unreachable()
            self._scheduler.lost(call, error)
        else:
            self._scheduler.answered(call, result, now)
            return (call.job, result) if call.is_awaited else None
        return None

    def _drop_unreachable(self) -> None:
        """Report idle replicas that have died together with another one, such as those of a lost node."""
        calls = {self._actors[name].pid.remote(): name for name in self._scheduler.idle}
        answers, _ = ray.wait([*calls], num_returns=len(calls), timeout=_ANSWER_S) if calls else ([], [])
        for answer in answers:
            try:
                ray.get(answer)
            except RayError:
                _log.info("replica %s is lost; it was idle", calls[answer])
                self._scheduler.lost_idle(calls[answer])

    def _end_overdue(self, now: float) -> None:
        """Give up calls that have taken too long, except calls that have not begun."""
        for call, pid in [*self._unplaced.items()]:
            if ray.wait([pid], timeout=0)[0]:
                del self._unplaced[call]
                self._scheduler.begun(call)
            else:
                self._scheduler.postpone(call, now)
        for call, limit in self._scheduler.overdue(now):
            if (worked_s := self._worked_s(call.replica)) < limit:
                self._scheduler.postpone(call, time.monotonic() - worked_s)
                continue
            self._calls = {
                reference: open_call for reference, open_call in self._calls.items() if open_call is not call
            }
            _log.info("replica %s is given up: it did not answer within %.0f s", call.replica, limit)
            self._scheduler.lost(call, TimeoutError(f"no answer within {limit:.0f} s (cluster.unit_timeout_s)"))

    def _worked_s(self, name: str) -> float:
        """Return for how long a replica reports to work for this pool, in s; infinity if it does not answer."""
        try:
            pool, seconds = ray.get(self._actors[name].works_for.remote(), timeout=_ANSWER_S)
        except (GetTimeoutError, RayError, KeyError):
            return math.inf
        if pool is None:
            return math.inf
        return float(seconds) if pool == self._name else 0.0
