"""A pool of one replica in this process, for debugging, tests, and machines without Ray. It gives the same numbers."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from typing_extensions import override

from raysearch.calibration.calibration import Calibration
from raysearch.errors import EvaluationError, UserError
from raysearch.evaluation.memory import release_memory
from raysearch.evaluation.pool import MAX_ATTEMPTS, Cutter, Pool, PoolStats, ReplicaStats, job_failure
from raysearch.evaluation.replica import Replica
from raysearch.evaluation.unit import Job, JobT


class InlinePool(Pool):
    """Does jobs one after another, on one replica in this process.

    Args:
        make_replica: Makes the replica; called at once.
    """

    def __init__(self, make_replica: Callable[[], Replica]) -> None:
        self._replica: Replica | None = make_replica()
        self._replica_stats = ReplicaStats(platform.node())
        self.stats = PoolStats([self._replica_stats])

    @property
    @override
    def n_replicas(self) -> int:
        return 1

    @override
    def run(
        self, jobs: Sequence[JobT], calibrations: Sequence[Calibration] = (), cutter: Cutter | None = None
    ) -> Iterator[tuple[JobT, Any]]:
        assert self._replica is not None, "the pool is open"
        by_fingerprint = {calibration.fingerprint: calibration for calibration in calibrations}
        for job in jobs:
            if (name := job.calibration) in by_fingerprint:
                self._replica.calibrations.setdefault(name, by_fingerprint[name])
            started = time.perf_counter()
            result = self._result(job, self._replica)
            seconds = time.perf_counter() - started
            self._replica_stats.units += 1
            self._replica_stats.busy_s += seconds
            self._replica_stats.present_s += seconds
            yield job, result

    @override
    def close(self) -> None:
        self._replica = None
        release_memory()

    def _result(self, job: Job, replica: Replica) -> Any:
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                return job.run(replica)
            except UserError:
                raise
            except Exception as error:
                if attempt == MAX_ATTEMPTS:
                    raise EvaluationError(job_failure(job, error)) from error
                self.stats.units_redone += 1
        raise AssertionError("unreachable")
