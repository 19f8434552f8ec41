"""The contract of a pool of replicas: it does jobs, each once, and yields their results in any order.

There are two pools: `raysearch.evaluation.inline_pool.InlinePool` and `raysearch.cluster.pool.RayPool`.
`tests/evaluation/pool_suite.py` tests this contract.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from pydantic import Field, computed_field

from raysearch.evaluation.unit import Job, JobT, MaskUnit
from raysearch.text.sentences import last_line

if TYPE_CHECKING:
    from raysearch.calibration.calibration import Calibration
    from raysearch.models.spec import LocatedModel, ModelInfo

#: How many times a job is tried before its failure ends the round.
MAX_ATTEMPTS = 3

#: Cuts a unit for a number of replicas. Returns parts, and small units for the end of the round
#: (`raysearch.evaluation.cutting`).
Cutter = Callable[[MaskUnit, float], tuple[Sequence[MaskUnit], Sequence[MaskUnit]]]


@dataclass
class ReplicaStats:
    """How one replica has been used.

    Args:
        node: The name of its machine.
        units: How many units and other jobs it has done.
        busy_s: Seconds in which it computed.
        present_s: Seconds in which it was ready and a round was in progress.
    """

    node: str
    units: int = 0
    busy_s: Annotated[float, Field(exclude=True)] = 0.0
    present_s: Annotated[float, Field(exclude=True)] = 0.0

    @computed_field  # type: ignore[prop-decorator]
    @property
    def busy_share(self) -> float:
        """The share of its time in which it computed, 0 … 1."""
        return min(1.0, self.busy_s / self.present_s) if self.present_s else 0.0


@dataclass
class PoolStats:
    """How the replicas of a pool have been used.

    Args:
        replicas: All replicas that the pool has had, in the order in which they loaded the model.
        units_redone: How many times a unit or job was tried again, after its replica died, hung or failed.
        waiting_seconds: Seconds in which there were jobs and no replica.
    """

    replicas: list[ReplicaStats] = field(default_factory=list)
    units_redone: int = 0
    waiting_seconds: float = 0.0

    @property
    def busy_share(self) -> float:
        """The share of the replicas' time in which they computed, 0 … 1."""
        present_s = sum(replica.present_s for replica in self.replicas)
        return min(1.0, sum(replica.busy_s for replica in self.replicas) / present_s) if present_s else 0.0


class Pool(Protocol):
    """Replicas that do jobs. The results do not depend on which replica does which job."""

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
            calibrations: The calibrations of the jobs. A replica gets a calibration when it first needs it.
            cutter: Cuts a unit into smaller units, which replace it, if this keeps more replicas busy.

        Yields:
            Each job with its result as soon as it is done, in any order; and None now and then while no job is done.

        Raises:
            UserError: A job raised it. The job is not tried again.
            EvaluationError: A job failed `MAX_ATTEMPTS` times.
        """
        ...

    def close(self) -> None:
        """Free the replicas. Closing twice is harmless."""
        ...


@dataclass(frozen=True)
class PoolSize:
    """The approximate size of a pool.

    Args:
        n_replicas: The largest number of replicas.
        shared_bytes: The memory of the weights that the replicas share, in bytes; 0 if each replica has its own copy.
        replica_bytes: The memory of each replica in addition to the shared weights, in bytes.
    """

    n_replicas: int
    shared_bytes: int
    replica_bytes: int

    @property
    def total_bytes(self) -> int:
        """The memory of all replicas together, in bytes."""
        return self.shared_bytes + self.n_replicas * self.replica_bytes


class JoinedCluster(Protocol):
    """A cluster that this process has joined, from `PoolFactory.join` to `close`."""

    def open(self, info: ModelInfo, n_units: float) -> Pool:
        """Load a model into replicas, and return their pool.

        Args:
            info: The model.
            n_units: How many replicas the work can keep busy; no more are opened.

        Returns:
            The pool, which the caller closes.

        Raises:
            UserError: The model does not fit, or replicas cannot be started.
        """
        ...

    def close(self) -> None:
        """Leave the cluster; its pools are closed before. Closing twice is harmless."""
        ...


class PoolFactory(Protocol):
    """Opens pools. `raysearch.cluster.options.ClusterOptions` is the one that users configure."""

    @property
    def cpus_per_replica(self) -> int:
        """CPU threads of a replica. The last bits of a loss may depend on them."""
        ...

    def check_model(self, model: LocatedModel) -> None:
        """Check that replicas have the device of a model, before anything is loaded.

        Raises:
            UserError: They do not have it.
        """
        ...

    def size(self, info: ModelInfo, n_units: float) -> PoolSize:
        """Return the size of the pool that would be opened; nothing is loaded.

        Args:
            info: The model.
            n_units: How many replicas the work can keep busy.

        Returns:
            The number of replicas, and the memory that they need in bytes.
        """
        ...

    def join(self) -> JoinedCluster:
        """Join the cluster, if it runs already; nothing is started or loaded before a pool is opened.

        Raises:
            UserError: The cluster does not answer.
        """
        ...


def job_failure(job: Job, error: BaseException) -> str:
    """Return the message on a job that failed `MAX_ATTEMPTS` times.

    Args:
        job: The job.
        error: The error of the last attempt.

    Returns:
        The message, with the last line of the error.
    """
    return f"{job} failed {MAX_ATTEMPTS} times; the last cause: {type(error).__name__}: {last_line(error)}"


@contextmanager
def opening(cluster: PoolFactory, info: ModelInfo, n_units: float) -> Iterator[Callable[[], Pool]]:
    """Open a pool when it is first needed, and close it at the end of the context.

    Args:
        cluster: Opens the pool.
        info: The model.
        n_units: How many replicas the work can keep busy.

    Yields:
        A function that returns the pool. The first call opens it.
    """
    with ExitStack() as stack:

        @functools.cache
        def open_pool() -> Pool:
            joined = stack.enter_context(closing(cluster.join()))
            return stack.enter_context(closing(joined.open(info, n_units)))

        yield open_pool


def done_jobs(jobs: Sequence[JobT], make_pool: Callable[[], Pool]) -> Iterator[tuple[int, tuple[JobT, Any]]]:
    """Run jobs, and yield after each how many are done, and the job with its result.

    Args:
        jobs: Distinct jobs.
        make_pool: Returns the pool; called only if there are jobs.

    Returns:
        An iterator of pairs: the number of jobs that are done, and a job with its result.
    """
    results = make_pool().run(jobs) if jobs else ()
    return enumerate(filter(None, results), start=1)
