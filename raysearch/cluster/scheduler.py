"""Decides which replica does which job, when a unit is cut, tried again or given up, and when an answer is overdue.

Pure: it knows replicas by name, never waits, and is handed the time. `raysearch.cluster.pool.RayPool` makes the calls
that it decides on, and reports back how each of them ended.

Replicas pull: an idle one gets the next job, so the load balances. The job of one that dies or hangs goes to another.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

from raysearch.errors import EvaluationError, UserError, last_line
from raysearch.evaluation.pool import MAX_ATTEMPTS, Cutter, PoolStats, ReplicaStats, job_failure
from raysearch.evaluation.unit import Job, MaskUnit, UnitResult

SYNC_S = 1.0  #: how often a pool compares notes with its fleet
_LAST_UNITS = 2  # for each replica; when there are no more, they are cut


class TimeoutPolicy:
    """Learns from answers how long others may take.

    Args:
        unit_timeout_s: A fixed limit for jobs on a calibration, or ``auto``, which always limits other jobs: ten times
            the longest that a job of the kind has taken for its size, and at least a minute.
    """

    load_s = 3600.0  #: For loading the model, maybe over a network.
    first_s = 86400.0  #: For the first job of a kind: a round's masks of a large model on a CPU, a task of lm-eval.
    least_s, factor = 60.0, 10.0

    def __init__(self, unit_timeout_s: float | Literal["auto"] = "auto") -> None:
        self._fixed = None if unit_timeout_s == "auto" else unit_timeout_s
        self._longest: dict[Hashable, float] = {}

    def limit_s(self, job: Job | None) -> float:
        """Return the seconds that a replica may take for a job, or, for None, to load the model."""
        if job is None:
            return self.load_s
        if job.calibration is not None and self._fixed is not None:
            return self._fixed
        longest = self._longest.get(job.kind)
        return self.first_s if longest is None else max(self.least_s, self.factor * longest * job.size)

    def learn(self, job: Job, seconds: float) -> None:
        """Note how long a job took."""
        self._longest[job.kind] = max(self._longest.get(job.kind, 0.0), seconds / job.size)


@dataclass(eq=False)
class Call:
    """A call of a replica that has not ended."""

    replica: str
    job: Any  #: None if the replica loads the model
    since: float  #: when it began, or when it was last known that it had not begun
    is_awaited: bool = False  #: whether the current round needs the answer
    is_postponed: bool = False  #: whether it had not begun when it was last looked at


@dataclass(frozen=True)
class Demand:
    """Replicas that a pool needs of its fleet, and those that it has lost."""

    wanted: int  #: how many replicas it has work for
    busy: Collection[str] = ()  #: the replicas that work for it, or are about to
    lost: Collection[str] = ()  #: the replicas that have died or are to be ended
    ready: int = 0  #: how many have loaded the model


class Scheduler:
    """Decides for one pool, round after round; `unit_timeout_s` is as in `TimeoutPolicy`."""

    def __init__(self, unit_timeout_s: float | Literal["auto"] = "auto") -> None:
        self.stats = PoolStats()
        self._timeouts = TimeoutPolicy(unit_timeout_s)
        self._waiting: deque[Any] = deque()
        self._uncut: set[Job] = set()
        self._cutter: Cutter | None = None
        self._attempts: Counter[Job] = Counter()
        self._members: list[str] = []
        self._idle: list[str] = []
        self._calls: dict[Call, None] = {}  # in the order in which they were made
        self._loaded: dict[str, ReplicaStats] = {}
        self._lost: set[str] = set()  # the fleet has yet to hear of
        self._losses_while_loading = 0  # in a row
        self._synced = self._accounted = -inf

    @property
    def n_replicas(self) -> int:
        """How many replicas have loaded the model."""
        return len(self._loaded)

    @property
    def idle(self) -> Sequence[str]:
        """The replicas that wait for a job."""
        return tuple(self._idle)

    @property
    def is_done(self) -> bool:
        """Whether every job of the round has been answered."""
        return not self._waiting and not any(call.is_awaited for call in self._calls)

    def begin(self, jobs: Sequence[Job], cutter: Cutter | None, now: float) -> None:
        """Start a round. The answers to an earlier one that was given up are not awaited any more."""
        self._waiting, self._attempts = deque(jobs), Counter()
        self._uncut, self._cutter = set(jobs) if cutter is not None else set(), cutter
        self._synced, self._accounted = -inf, now
        for call in self._calls:
            call.is_awaited = False

    def must_sync(self, now: float) -> bool:
        """Return whether it is time to tell the fleet of `demand` and to `sync` with the replicas that it has."""
        return bool(self._lost) or not self._members or now - self._synced >= SYNC_S

    def demand(self) -> Demand:
        """Return what the fleet should know."""
        wanted = sum(job.size for job in self._waiting)
        busy = [call.replica for call in self._calls if call.job is not None]
        soon = self._idle[-wanted:] if wanted else []  # get a job before the fleet hears of it
        return Demand(wanted + len(busy), [*busy, *soon], set(self._lost), self.n_replicas)

    def sync(self, members: Iterable[str], now: float) -> list[Call]:
        """Take over which replicas the fleet has, and return the calls by which new ones load the model."""
        known, self._members = set(self._members), list(members)
        self._synced = now
        self._lost.clear()
        self._idle = [name for name in self._idle if name in self._members]
        self._loaded = {name: stats for name, stats in self._loaded.items() if name in self._members}
        return [self._call(Call(name, None, now)) for name in self._members if name not in known]

    def assign(self, now: float) -> list[Call]:
        """Return calls that give waiting jobs to idle replicas, as long as there are both.

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
        """Note that a call returned its result: of a job, or the name of the node on which the model was loaded."""
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
        """Note that a call raised an error. A replica that could not load, or whose CUDA is broken, is replaced.

        Raises:
            UserError: The error is one, and not that of an earlier round's job.
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
        if call.replica in self._idle:  # another one gets the job, if there is one
            self._idle.remove(call.replica)
            self._idle.insert(0, call.replica)
        self._retry(call, error)

    def lost(self, call: Call, error: BaseException) -> None:
        """Note that a replica died or hung in a call. It is replaced, and its job is tried again.

        Raises:
            EvaluationError: The job has failed too often, or replicas keep dying while they load the model.
        """
        self._end(call, is_idle=False)
        self._lost.add(call.replica)
        self._loaded.pop(call.replica, None)
        if call.job is None and call.replica in self._members:  # else the fleet has let it go
            self._losses_while_loading += 1
            if self._losses_while_loading >= MAX_ATTEMPTS * len(self._members):
                raise EvaluationError(
                    f"replicas die while they load the model; the last cause: {last_line(error)}"
                ) from error
        self._retry(call, error)

    def lost_idle(self, name: str) -> None:
        """Note that an idle replica has died."""
        self._lost.add(name)
        self._idle.remove(name)

    def overdue(self, now: float) -> list[tuple[Call, float]]:
        """Return the calls that have taken too long, each with its limit in seconds."""
        limits = [(call, self._timeouts.limit_s(call.job)) for call in self._calls]
        return [(call, limit) for call, limit in limits if now - call.since >= limit]

    def postpone(self, call: Call, now: float) -> None:
        """Note that a call has not begun: its replica has no process yet, or works for another pool."""
        call.since, call.is_postponed = now, True

    def begun(self, call: Call) -> None:
        """Note that a replica has a process, which begins a call that was postponed."""
        call.is_postponed = False

    def account_time(self, now: float) -> None:
        """Add the time since the last call of this method to that of the replicas that are there."""
        passed, self._accounted = now - self._accounted, now
        for stats in self._loaded.values():
            stats.present_s += passed
        if not self._loaded:
            self.stats.waiting_seconds += passed

    def _call(self, call: Call) -> Call:
        self._calls[call] = None
        return call

    def _end(self, call: Call, is_idle: bool = True) -> None:
        """Forget a call; its replica waits for the next job, unless it is lost or the fleet has let it go."""
        del self._calls[call]
        if is_idle and call.replica in self._members:
            self._idle.append(call.replica)

    def _retry(self, call: Call, error: BaseException) -> None:
        """Put the job of a call in front again, if the round needs it."""
        if not call.is_awaited:
            return
        self.stats.units_redone += 1
        self._attempts[call.job] += 1
        if self._attempts[call.job] == MAX_ATTEMPTS:
            raise EvaluationError(job_failure(call.job, error)) from error
        self._waiting.appendleft(call.job)

    def _cut_first(self, replicas: float) -> None:
        """Cut the first unit for a number of replicas; its ends go behind all that waits."""
        if self._cutter is None or not isinstance(self._waiting[0], MaskUnit):
            return
        parts, ends = self._cutter(self._waiting.popleft(), replicas)
        self._waiting.extendleft(reversed(parts))
        self._waiting.extend(ends)
