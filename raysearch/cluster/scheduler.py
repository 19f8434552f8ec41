"""Decides which replica does which job, when a unit is cut, tried again or given up, and when an answer is overdue.

The scheduler is pure: replicas are names, it never waits, and the time is an argument. `raysearch.cluster.pool.RayPool`
makes the calls, and reports how each of them ended.

Replicas pull jobs: an idle replica gets the next job, so the load is balanced. If a replica dies or hangs, another one
gets its job.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

from raysearch.errors import EvaluationError, UserError
from raysearch.evaluation.pool import MAX_ATTEMPTS, Cutter, PoolStats, ReplicaStats, job_failure
from raysearch.evaluation.unit import Job, MaskUnit, UnitResult
from raysearch.text.sentences import last_line

SYNC_S = 1.0  #: seconds between two syncs of a pool with its fleet
_LAST_UNITS = 2  # the last units of a round, so many for each replica, are cut


class TimeoutPolicy:
    """Limits the time of calls; learns from earlier jobs.

    Args:
        unit_timeout_s: A fixed limit for jobs on a calibration, or ``auto``. The automatic limit is ten times the
            longest time that a job of the kind has taken, relative to its size, and at least a minute. It always
            applies to other jobs.
    """

    load_s = 3600.0  #: The limit for loading the model, which may come over a network.
    #: The limit for the first job of a kind, such as the masks of a round on a CPU, or a task of lm-eval.
    first_s = 86400.0
    least_s = 60.0
    factor = 10.0

    def __init__(self, unit_timeout_s: float | Literal["auto"] = "auto") -> None:
        self._fixed = None if unit_timeout_s == "auto" else unit_timeout_s
        self._longest: dict[Hashable, float] = {}

    def limit_s(self, job: Job | None) -> float:
        """Return the seconds that a replica may take for a job, or for loading the model if `job` is None."""
        if job is None:
            return self.load_s
        if job.calibration is not None and self._fixed is not None:
            return self._fixed
        longest = self._longest.get(job.kind)
        return self.first_s if longest is None else max(self.least_s, self.factor * longest * job.size)

    def learn(self, job: Job, seconds: float) -> None:
        """Learn from a job that is done.

        Args:
            job: The job.
            seconds: The time that it took.
        """
        self._longest[job.kind] = max(self._longest.get(job.kind, 0.0), seconds / job.size)


@dataclass(eq=False)
class Call:
    """A call of a replica that has not ended.

    Args:
        replica: The name of the replica.
        job: The job; None if the replica loads the model.
        since: When the call began, or when it was last seen not to have begun.
        is_awaited: Whether the current round needs the answer.
        is_postponed: Whether the call had not begun when it was last checked.
    """

    replica: str
    job: Any
    since: float
    is_awaited: bool = False
    is_postponed: bool = False


@dataclass(frozen=True)
class Demand:
    """The replicas that a pool needs, and those that it has lost.

    Args:
        n_replicas: How many replicas the pool has work for.
        busy: The replicas that work for the pool, or will at once.
        lost: The replicas that have died or must be ended.
        ready: How many replicas have loaded the model.
    """

    n_replicas: int
    busy: Collection[str] = ()
    lost: Collection[str] = ()
    ready: int = 0


class Scheduler:
    """Decides for one pool, round after round.

    Args:
        unit_timeout_s: The time limit of units (`TimeoutPolicy`).
    """

    def __init__(self, unit_timeout_s: float | Literal["auto"] = "auto") -> None:
        self.stats = PoolStats()
        self._timeouts = TimeoutPolicy(unit_timeout_s)
        self._waiting: deque[Any] = deque()
        self._uncut: set[Job] = set()
        self._cutter: Cutter | None = None
        self._attempts: Counter[Job] = Counter()
        self._members: list[str] = []
        self._idle: list[str] = []
        self._calls: dict[Call, None] = {}  # in the order of the calls
        self._loaded: dict[str, ReplicaStats] = {}
        self._lost: set[str] = set()  # replicas whose loss the fleet does not know yet
        self._losses_while_loading = 0  # consecutive losses
        self._synced = self._accounted = -inf

    @property
    def n_replicas(self) -> int:
        """How many replicas have loaded the model."""
        return len(self._loaded)

    @property
    def idle(self) -> Sequence[str]:
        """The replicas without a job."""
        return tuple(self._idle)

    @property
    def is_done(self) -> bool:
        """Whether every job of the round has been answered."""
        return not self._waiting and not any(call.is_awaited for call in self._calls)

    def begin(self, jobs: Sequence[Job], cutter: Cutter | None, now: float) -> None:
        """Start a round. Answers to jobs of an earlier round are not awaited any more.

        Args:
            jobs: The jobs of the round, distinct.
            cutter: Cuts units; None to cut none.
            now: The time in s.
        """
        self._waiting = deque(jobs)
        self._attempts = Counter()
        self._uncut = set(jobs) if cutter is not None else set()
        self._cutter = cutter
        self._synced = -inf
        self._accounted = now
        for call in self._calls:
            call.is_awaited = False

    def must_sync(self, now: float) -> bool:
        """Return whether it is time to send `demand` to the fleet, and to `sync` with its replicas."""
        return bool(self._lost) or not self._members or now - self._synced >= SYNC_S

    def demand(self) -> Demand:
        """Return the demand to send to the fleet."""
        n_waiting = sum(job.size for job in self._waiting)
        busy = [call.replica for call in self._calls if call.job is not None]
        soon_busy = self._idle[-n_waiting:] if n_waiting else []  # they get a job before the fleet gets the demand
        return Demand(n_waiting + len(busy), [*busy, *soon_busy], set(self._lost), self.n_replicas)

    def sync(self, members: Iterable[str], now: float) -> list[Call]:
        """Adopt the replicas of the fleet, and return the calls by which new replicas load the model.

        Args:
            members: The names of the fleet's replicas.
            now: The time in s.

        Returns:
            One call for each new replica, which loads the model.
        """
        known_members = set(self._members)
        self._members = list(members)
        self._synced = now
        self._lost.clear()
        self._idle = [name for name in self._idle if name in self._members]
        self._loaded = {name: stats for name, stats in self._loaded.items() if name in self._members}
        return [self._call(Call(name, None, now)) for name in self._members if name not in known_members]

    def assign(self, now: float) -> list[Call]:
        """Return calls that give waiting jobs to idle replicas, while there are both.

        Replicas that are loading the model will be idle soon, so units are cut for them, too.
        """
        calls = []
        n_loading = sum(call.job is None and not call.is_postponed for call in self._calls)
        while self._waiting and self._idle:
            job = self._waiting[0]
            if job in self._uncut and len(self._uncut) <= _LAST_UNITS * (self.n_replicas + n_loading):
                self._cut_first((len(self._idle) + n_loading) / len(self._uncut))
            self._uncut.discard(job)
            calls.append(self._call(Call(self._idle.pop(), self._waiting.popleft(), now, is_awaited=True)))
        return calls

    def answered(self, call: Call, result: Any, now: float) -> None:
        """Record that a call has returned.

        Args:
            call: The call.
            result: The result of its job, or the name of the node on which the model was loaded.
            now: The time in s.
        """
        self._end(call)
        if call.job is None:
            self._losses_while_loading = 0
            self._loaded[call.replica] = ReplicaStats(node=result)
            self.stats.replicas.append(self._loaded[call.replica])
            return
        seconds = result.seconds if isinstance(result, UnitResult) else now - call.since
        self._timeouts.learn(call.job, seconds)
        if call.replica in self._loaded:
            self._loaded[call.replica].units += 1
            self._loaded[call.replica].busy_s += seconds

    def failed(self, call: Call, error: BaseException) -> None:
        """Record that a call has raised an error.

        The replica is replaced if it could not load the model, or if its CUDA context is broken.

        Args:
            call: The call.
            error: The error.

        Raises:
            UserError: The error is a `UserError`, unless an earlier round's job raised it.
            EvaluationError: The job has failed too often.
        """
        if isinstance(error, UserError) and (call.is_awaited or call.job is None):
            self._end(call, is_idle=call.job is not None)
            if call.job is None:
                self._lost.add(call.replica)
            raise error
        if call.job is None or "CUDA error" in str(error):  # after one, every call of the process fails at once
            return self.lost(call, error)
        self._end(call)
        if call.replica in self._idle:  # so another replica gets the job, if there is one
            self._idle.remove(call.replica)
            self._idle.insert(0, call.replica)
        self._retry(call, error)

    def lost(self, call: Call, error: BaseException) -> None:
        """Record that a replica died or hung in a call. It is replaced, and its job is tried again.

        Args:
            call: The call.
            error: The cause.

        Raises:
            EvaluationError: The job has failed too often, or replicas keep dying while they load the model.
        """
        self._end(call, is_idle=False)
        self._lost.add(call.replica)
        self._loaded.pop(call.replica, None)
        if call.job is None and call.replica in self._members:  # otherwise the fleet has ended it
            self._losses_while_loading += 1
            if self._losses_while_loading >= MAX_ATTEMPTS * len(self._members):
                raise EvaluationError(
                    f"replicas die while they load the model; the last cause: {last_line(error)}"
                ) from error
        self._retry(call, error)

    def lost_idle(self, name: str) -> None:
        """Record that an idle replica has died."""
        self._lost.add(name)
        self._idle.remove(name)

    def overdue(self, now: float) -> list[tuple[Call, float]]:
        """Return the calls that have taken too long at the time `now`, each with its limit in seconds."""
        limits = [(call, self._timeouts.limit_s(call.job)) for call in self._calls]
        return [(call, limit) for call, limit in limits if now - call.since >= limit]

    def postpone(self, call: Call, now: float) -> None:
        """Record that a call has not begun: its replica has no process yet, or works for another pool.

        Args:
            call: The call.
            now: The time from which the call is limited.
        """
        call.since = now
        call.is_postponed = True

    def begun(self, call: Call) -> None:
        """Record that the replica of a postponed call has a process now, so that the call begins."""
        call.is_postponed = False

    def account_time(self, now: float) -> None:
        """Add the time since the last call of this method to the statistics of the replicas that are ready."""
        seconds = now - self._accounted
        self._accounted = now
        for stats in self._loaded.values():
            stats.present_s += seconds
        if not self._loaded:
            self.stats.waiting_seconds += seconds

    def _call(self, call: Call) -> Call:
        self._calls[call] = None
        return call

    def _end(self, call: Call, is_idle: bool = True) -> None:
        """Remove a call; its replica becomes idle, unless it is lost or the fleet has ended it."""
        del self._calls[call]
        if is_idle and call.replica in self._members:
            self._idle.append(call.replica)

    def _retry(self, call: Call, error: BaseException) -> None:
        """Put the job of a call back at the front of the queue, if the round needs it."""
        if not call.is_awaited:
            return
        self.stats.units_redone += 1
        self._attempts[call.job] += 1
        if self._attempts[call.job] == MAX_ATTEMPTS:
            raise EvaluationError(job_failure(call.job, error)) from error
        self._waiting.appendleft(call.job)

    def _cut_first(self, replicas: float) -> None:
        """Cut the first unit for a number of replicas; its ends go to the end of the queue."""
        if self._cutter is None or not isinstance(self._waiting[0], MaskUnit):
            return
        parts, ends = self._cutter(self._waiting.popleft(), replicas)
        self._waiting.extendleft(reversed(parts))
        self._waiting.extend(ends)
