"""The contract of a pool of replicas: jobs go in, results come out, in any order and each once.

There are two: `raysearch.evaluation.inline_pool.InlinePool` and `raysearch.cluster.pool.RayPool`.
`raysearch.testing.pool_suite` tests what is stated here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from pydantic import Field, computed_field

from raysearch.errors import last_line
from raysearch.evaluation.unit import Job, JobT, MaskUnit

if TYPE_CHECKING:
    from raysearch.calibration.calibration import Calibration
    from raysearch.models.spec import LocatedModel, ModelInfo

#: How often a job is tried before its failure ends the round.
MAX_ATTEMPTS = 3

#: Cuts a unit for a number of replicas into parts, and small ends for the end of a round (`evaluation.cutting`).
Cutter = Callable[[MaskUnit, float], tuple[Sequence[MaskUnit], Sequence[MaskUnit]]]


@dataclass
class ReplicaStats:
    """How one replica has been used."""

    node: str
    units: int = 0  #: and other jobs
    busy_s: Annotated[float, Field(exclude=True)] = 0.0
    present_s: Annotated[float, Field(exclude=True)] = 0.0  #: while a round was under way

    @computed_field  # type: ignore[prop-decorator]
    @property
    def busy_share(self) -> float:
        """Share of its time spent computing, 0 … 1."""
        return min(1.0, self.busy_s / self.present_s) if self.present_s else 0.0


@dataclass
class PoolStats:
    """How the replicas of a pool have been used."""

    replicas: list[ReplicaStats] = field(default_factory=list)  #: all it has had, in the order in which they came
    units_redone: int = 0  #: times a unit or job was tried again, after its replica died, hung or failed
    waiting_seconds: float = 0.0  #: in which there were jobs and no replica

    @property
    def busy_share(self) -> float:
        """Share of the replicas' time spent computing, 0 … 1."""
        present_s = sum(replica.present_s for replica in self.replicas)
        return min(1.0, sum(replica.busy_s for replica in self.replicas) / present_s) if present_s else 0.0


class Pool(Protocol):
    """Replicas that do jobs. Which replica does which job never changes a number."""

    stats: PoolStats  #: how the replicas have been used so far

    @property
    def n_replicas(self) -> int:
        """How many replicas have loaded the model."""
        ...

    def run(
        self, jobs: Sequence[JobT], calibrations: Sequence[Calibration] = (), cutter: Cutter | None = None
    ) -> Iterator[tuple[JobT, Any] | None]:
        """Do a round of jobs, each once.

        Args:
            jobs: Distinct jobs.
            calibrations: Those that they need. A replica gets one when it first needs it.
            cutter: Cuts a unit in pieces, which are then done in its place, if that keeps more replicas busy.

        Yields:
            Each job with its result as soon as it is done, in any order; and None now and then while none is.

        Raises:
            UserError: A job raised it. It is not tried again.
            EvaluationError: A job failed `MAX_ATTEMPTS` times.
        """
        ...

    def close(self) -> None:
        """Free the replicas. Closing twice is harmless."""
        ...


@dataclass(frozen=True)
class PoolSize:
    """How large a pool is, about.

    Args:
        n_replicas: How many replicas it has, at most.
        shared_bytes: Memory of the weights that they share; 0 where each holds its own.
        replica_bytes: Memory of each replica beside that.
    """

    n_replicas: int
    shared_bytes: int
    replica_bytes: int

    @property
    def total_bytes(self) -> int:
        """The memory of all replicas."""
        return self.shared_bytes + self.n_replicas * self.replica_bytes


class PoolFactory(Protocol):
    """How pools come to be; `raysearch.cluster.options.ClusterOptions` is what users configure."""

    @property
    def cpus_per_replica(self) -> int:
        """CPU threads of a replica, on which the last bits of a loss may depend."""
        ...

    def check_model(self, model: LocatedModel) -> None:
        """Refuse a model on a device that replicas do not have, by a `UserError`, before anything is loaded."""
        ...

    def check_cluster(self) -> None:
        """Refuse a cluster that does not answer, by a `UserError`, before anything is done for it."""
        ...

    def size(self, info: ModelInfo, n_units: float) -> PoolSize:
        """Return how large a pool would be that this many units keep busy; nothing is loaded."""
        ...

    def open(self, info: ModelInfo, n_units: float) -> Pool:
        """Load a model into as many replicas as this many units or jobs keep busy.

        Raises:
            UserError: The model does not fit, or replicas cannot be started.
        """
        ...


def job_failure(job: Job, error: BaseException) -> str:
    """One sentence on a job that failed for good."""
    return f"{job} failed {MAX_ATTEMPTS} times; the last cause: {type(error).__name__}: {last_line(error)}"


@contextmanager
def opening(cluster: PoolFactory, info: ModelInfo, n_units: float) -> Iterator[Callable[[], Pool]]:
    """Give a pool when it is first needed; it is closed at the end."""
    with ExitStack() as stack:
        yield functools.cache(lambda: stack.enter_context(closing(cluster.open(info, n_units))))


def done_jobs(jobs: Sequence[JobT], make_pool: Callable[[], Pool]) -> Iterator[tuple[int, tuple[JobT, Any]]]:
    """Run jobs, if there are any, and yield how many are done, and the last with its result."""
    return enumerate(filter(None, make_pool().run(jobs) if jobs else ()), start=1)
