"""The pool whose replicas are Ray actors. What it does is decided by a `Scheduler`; here are only the calls to Ray."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from typing_extensions import override

from raysearch.calibration.calibration import Calibration
from raysearch.cluster.fleet import Fleet, RemoteFleet
from raysearch.cluster.scheduler import SYNC_S, Call, Scheduler
from raysearch.evaluation.pool import Cutter, Pool
from raysearch.evaluation.unit import JobT

_ANSWER_S = 10.0  # that a replica may take to say what it does


@dataclass(frozen=True)
class Replicas:
    """Everything that a pool in any process needs to use replica actors."""

    fleet: Fleet | RemoteFleet
    #: A reference to the `Recipe` that they are made by, in a list so that Ray passes it on as it is.
    recipe: Sequence[Any]
    most: int  #: how many actors there may be
    unit_timeout_s: float | Literal["auto"] = "auto"  #: as in `raysearch.cluster.scheduler.TimeoutPolicy`


class RayPool(Pool):
    """Replica actors, which other pools may use at the same time: each then gets its turn.

    Args:
        on_close: Called at the end, if the actors are this pool's own.
        check: Raises if Ray has died.
    """

    def __init__(
        self, replicas: Replicas, on_close: Callable[[], None] = lambda: None, check: Callable[[], None] = lambda: None
    ) -> None:
        self._fleet, self._recipe = replicas.fleet, list(replicas.recipe)
        self._on_close, self._check = on_close, check
        self._scheduler = Scheduler(replicas.unit_timeout_s)
        self.stats = self._scheduler.stats
        self._name = uuid.uuid4().hex
        self._actors: Mapping[str, Any] = {}
        self._calls: dict[Any, Call] = {}  # by the reference to what they return
        self._unplaced: dict[Call, Any] = {}  # references that are ready once the actor has a process
        self._calibrations: dict[str | None, list[Any]] = {}  # references, which actors follow if they lack it

    @property
    @override
    def n_replicas(self) -> int:
        return self._scheduler.n_replicas

    @override
    def run(
        self, jobs: Sequence[JobT], calibrations: Sequence[Calibration] = (), cutter: Cutter | None = None
    ) -> Iterator[tuple[JobT, Any] | None]:
        self._check()
        for one in calibrations:
            if one.fingerprint not in self._calibrations:
                self._calibrations[one.fingerprint] = [ray.put(one)]
        self._scheduler.begin(jobs, cutter, time.monotonic())
        while not self._scheduler.is_done:
            self._check()
            if self._scheduler.must_sync(time.monotonic()):
                self._sync()
            self._assign()
            answer = self._wait()
            self._assign()  # no replica waits while the answer is put into the ledger
            yield answer
        self._sync()

    @override
    def close(self) -> None:
        self._actors, self._calls, self._unplaced, self._calibrations = {}, {}, {}, {}
        self._on_close()

    def _sync(self) -> None:
        """Tell the fleet what is wanted and lost, and have new replicas load the model."""
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
        """Return the next job of the round that is done, with its result; None if none was after a while."""
        if not self._calls:
            time.sleep(SYNC_S)  # nobody needs a replica, or none can be had yet
        done, _ = ray.wait(list(self._calls), timeout=SYNC_S) if self._calls else ([], [])
        now = time.monotonic()
        self._scheduler.account_time(now)
        if not done:
            self._end_overdue(now)
            return None
        call = self._calls.pop(done[0])
        self._unplaced.pop(call, None)
        try:
            result = ray.get(done[0])
        except RayTaskError as error:
            self._scheduler.failed(call, error.cause if isinstance(error.cause, BaseException) else error)
        except RayError as error:  # it died, or its node did, or its answer was lost on the way
            self._drop_unreachable()
            self._scheduler.lost(call, error)
        else:
            self._scheduler.answered(call, result, now)
            return (call.job, result) if call.is_awaited else None
        return None

    def _drop_unreachable(self) -> None:
        """Find the idle replicas that have died with another, as those of a lost node, before units do."""
        calls = {self._actors[name].pid.remote(): name for name in self._scheduler.idle}
        answers, _ = ray.wait([*calls], num_returns=len(calls), timeout=_ANSWER_S) if calls else ([], [])
        for answer in answers:
            try:
                ray.get(answer)
            except RayError:
                self._scheduler.lost_idle(calls[answer])

    def _end_overdue(self, now: float) -> None:
        """Give up the calls that have taken too long, except those that have not begun."""
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
            self._calls = {reference: other for reference, other in self._calls.items() if other is not call}
            self._scheduler.lost(call, TimeoutError(f"no answer within {limit:.0f} s (cluster.unit_timeout_s)"))

    def _worked_s(self, name: str) -> float:
        """Return how long a replica has worked on a call of this pool, by its own account; infinity without one."""
        try:
            pool, seconds = ray.get(self._actors[name].works_for.remote(), timeout=_ANSWER_S)
        except (GetTimeoutError, RayError, KeyError):
            return math.inf
        return math.inf if pool is None else float(seconds) if pool == self._name else 0.0
