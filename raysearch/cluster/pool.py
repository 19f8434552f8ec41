"""Hands units to replica actors: the only place on the hot path that knows Ray, but for what those are made by.

Replicas pull: whoever is idle gets the next unit, so load balances by itself, and whoever joins late just starts to
pull. A replica that dies, or takes too long, is replaced, and its unit handed to another; a unit that fails
`MAX_ATTEMPTS` times ends the search with its cause.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from raysearch.cluster.fleet import Membership
from raysearch.cluster.timeout import TimeoutPolicy
from raysearch.errors import EvaluationError, UserError
from raysearch.evaluation.pool_report import PoolReport, ReplicaReport
from raysearch.evaluation.unit import MAX_ATTEMPTS, Cutter, Job, Task, Unit, UnitResult, unit_failure

_Asked = TypeVar("_Asked", bound=Task | Job)

#: How often a pool looks for replicas that have come or gone, and how long one may take to say what it is at.
_LOOK_S, _ANSWER_S = 1.0, 10.0
#: The last units of a round are cut: so many for each replica.
_LAST_UNITS = 2


@dataclass(frozen=True)
class Replicas:
    """What a pool in any process needs to use replica actors.

    Args:
        fleet: Says who they are.
        recipe: A reference to the `Recipe` that they are made by, in a list so that Ray passes it on as it is.
        most: How many there may be.
        unit_timeout_s: See `TimeoutPolicy`.
    """

    fleet: Membership
    recipe: Sequence[Any]
    most: int
    unit_timeout_s: float | Literal["auto"] = "auto"


@dataclass
class _Call:
    """What an actor has been asked.

    Args:
        name: The actor's.
        asked: The unit or job; None while it makes its replica.
        since: When, or when it was last heard to be at another pool's, or not to have been placed yet.
        placed: A reference that is ready once it has a process; None where it is known to have one.
        awaited: Whether the round in hand needs the answer.
    """

    name: str
    asked: Any
    since: float
    placed: Any = None
    awaited: bool = False


class RayPool:
    """Hands units to replica actors, which other pools may use at the same time: each then gets its turn.

    Args:
        replicas: The actors.
        on_close: Called at the end, where the actors are this pool's own.
    """

    def __init__(self, replicas: Replicas, on_close: Callable[[], None] = lambda: None) -> None:
        self._fleet, self._recipe = replicas.fleet, list(replicas.recipe)
        self._timeouts = TimeoutPolicy(replicas.unit_timeout_s)
        self._on_close = on_close
        self._name = uuid.uuid4().hex
        self._actors: Mapping[str, Any] = {}
        self._idle: list[str] = []
        self._calls: dict[Any, _Call] = {}
        self._reports: dict[str, ReplicaReport] = {}  # of those that have made their replica
        self._lost: set[str] = set()  # the fleet has yet to hear of
        self._deaths_while_loading = 0  # in a row
        self._looked = self._accounted = 0.0
        self.report = PoolReport()

    @property
    def n_replicas(self) -> int:
        """See `Pool`."""
        return len(self._reports)

    def run(self, units: Sequence[Task], cutter: Cutter | None = None) -> Iterator[tuple[Task, UnitResult] | None]:
        """See `Pool.run`."""
        return self._each(units, "evaluate", cutter)

    def perform(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Any]]:
        """See `Pool.perform`."""
        return (answer for answer in self._each(jobs, "perform") if answer is not None)

    def close(self) -> None:
        """See `Pool.close`."""
        self._actors, self._idle, self._calls = {}, [], {}
        self._on_close()

    def _each(
        self, units: Sequence[_Asked], method: str, cutter: Cutter | None = None
    ) -> Iterator[tuple[_Asked, Any] | None]:
        """Has a method of the actors answer every unit."""
        waiting: deque[_Asked] = deque(units)
        attempts: Counter[_Asked] = Counter()
        whole: set[Task | Job] = set(units) if cutter is not None else set()
        self._looked, self._accounted = 0.0, time.monotonic()
        for call in self._calls.values():
            call.awaited = False  # what a round that was given up has asked only keeps its replica busy
        while waiting or any(call.awaited for call in self._calls.values()):
            self._look(waiting)
            while waiting and self._idle:
                unit = waiting[0]
                if unit in whole and len(whole) <= _LAST_UNITS * self.n_replicas:
                    self._cut(waiting, cutter, len(self._idle) / len(whole))
                whole.discard(unit)
                self._ask(self._idle.pop(), method, waiting.popleft())
            over, outcome = self._wait()
            if over is None:
                yield None
            elif over.awaited and not isinstance(outcome, BaseException):
                yield over.asked, outcome
            elif over.awaited:
                self.report.units_redone += 1
                attempts[over.asked] += 1
                if attempts[over.asked] == MAX_ATTEMPTS:
                    raise EvaluationError(unit_failure(over.asked, outcome)) from outcome
                waiting.appendleft(over.asked)
        self._look((), at_once=True)

    def _look(self, waiting: Iterable[Task | Job], at_once: bool = False) -> None:
        """Tells the fleet what is wanted and lost, now and then, and has those that are new make their replicas."""
        now = time.monotonic()
        at_once = at_once or bool(self._lost) or not self._actors
        if not at_once and now - self._looked < _LOOK_S:
            return
        self._looked = now
        wanted = sum(unit.size for unit in waiting)
        busy = [call.name for call in self._calls.values() if call.asked is not None]
        soon = self._idle[-wanted:] if wanted else []  # will be asked before the fleet hears of it
        before = self._actors
        self._actors = self._fleet.meet(self._name, wanted + len(busy), [*busy, *soon], self._lost)
        self._lost = set()
        for name, actor in self._actors.items():
            if name not in before:
                self._calls[actor.prepare.remote(self._name, self._recipe)] = _Call(name, None, now, actor.pid.remote())
        self._idle = [name for name in self._idle if name in self._actors]
        self._reports = {name: report for name, report in self._reports.items() if name in self._actors}

    def _ask(self, name: str, method: str, asked: Task | Job) -> None:
        call = getattr(self._actors[name], method).remote(self._name, self._recipe, asked)
        self._calls[call] = _Call(name, asked, time.monotonic(), awaited=True)

    def _cut(self, waiting: deque[Any], cutter: Cutter | None, replicas: float) -> None:
        """Cuts the first unit for so many replicas; its ends go behind all that waits."""
        if cutter is None or not isinstance(waiting[0], Unit):
            return
        parts, ends = cutter(waiting[0], replicas)
        waiting.popleft()
        waiting.extendleft(reversed(parts))
        waiting.extend(ends)

    def _wait(self) -> tuple[_Call | None, Any]:
        """The next call that is over, and its answer or what went wrong; none after a while without."""
        if not self._calls:
            time.sleep(_LOOK_S)  # no replica is wanted by anyone else, and none can be had yet
        done, _ = ray.wait(list(self._calls), timeout=_LOOK_S) if self._calls else ([], [])
        self._account_time()
        if not done:
            return self._overdue()
        call = self._calls.pop(done[0])
        try:
            answer = ray.get(done[0])
        except RayTaskError as error:
            failure: BaseException = error.cause if isinstance(error.cause, BaseException) else error
            if isinstance(failure, UserError):
                raise failure from error
            if call.asked is None:
                return call, self._replace_dead(call, failure)
            self._free(call.name)
            return call, failure
        except RayError as error:  # it died, or its node did, or its answer was lost on the way
            self._drop_unreachable()
            return call, self._replace_dead(call, error)
        self._on_answer(call, answer)
        return call, answer

    def _on_answer(self, call: _Call, answer: Any) -> None:
        """Takes note of an answer, and that whoever gave it is free."""
        self._free(call.name)
        if call.asked is None:
            self._deaths_while_loading = 0
            self._reports[call.name] = ReplicaReport(node=answer)
            self.report.replicas.append(self._reports[call.name])
            return
        seconds = answer.seconds if isinstance(answer, UnitResult) else time.monotonic() - call.since
        self._timeouts.learn(call.asked, seconds)
        if call.name in self._reports:
            self._reports[call.name].units += 1
            self._reports[call.name].busy_s += seconds

    def _free(self, name: str) -> None:
        """Has a replica wait for what comes next, unless the fleet has let it go."""
        if name in self._actors:
            self._idle.append(name)

    def _drop_unreachable(self) -> None:
        """Gives up the idle replicas that have died with another, as those of a lost node, before units find out."""
        calls = {actor.pid.remote(): name for name, actor in self._actors.items() if name in self._idle}
        answers, _ = ray.wait([*calls], num_returns=len(calls), timeout=_ANSWER_S) if calls else ([], [])
        for answer in answers:
            try:
                ray.get(answer)
            except RayError:
                self._lost.add(calls[answer])
                self._idle.remove(calls[answer])

    def _replace_dead(self, call: _Call, error: BaseException) -> BaseException:
        """Has a replica that died replaced, unless they keep dying before they have loaded."""
        self._lost.add(call.name)
        self._reports.pop(call.name, None)
        if call.asked is None and call.name in self._actors:  # else the fleet has let it go
            self._deaths_while_loading += 1
            if self._deaths_while_loading >= MAX_ATTEMPTS * len(self._actors):
                raise EvaluationError(f"replicas die while they load the model; the last cause: {error}") from error
        return error

    def _overdue(self) -> tuple[_Call | None, Any]:
        """A call that has taken too long, unless its replica is at another pool's."""
        for reference, call in self._calls.items():
            if call.placed is not None and not ray.wait([call.placed], timeout=0)[0]:
                call.since = time.monotonic()
                continue
            limit = self._timeouts.limit_s(call.asked)
            if time.monotonic() - call.since < limit:
                continue
            if self._is_elsewhere(call.name):
                call.since = time.monotonic()
                continue
            del self._calls[reference]
            cause = TimeoutError(f"no answer within {limit:.0f} s (cluster.unit_timeout_s)")
            return call, self._replace_dead(call, cause)
        return None, None

    def _is_elsewhere(self, name: str) -> bool:
        """Whether a replica says that it works for another pool."""
        try:
            pool = ray.get(self._actors[name].works_for.remote(), timeout=_ANSWER_S)
        except (GetTimeoutError, RayError, KeyError):
            return False
        return pool not in (None, self._name)

    def _account_time(self) -> None:
        """Counts the time that has passed as that of whoever is there."""
        now = time.monotonic()
        passed, self._accounted = now - self._accounted, now
        for report in self._reports.values():
            report.present_s += passed
        if not self._reports:
            self.report.waiting_s += passed
