"""One replica in this very process: for debugging, tests, and machines without Ray. Same numbers as the Ray pool."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from raysearch.errors import EvaluationError, UserError
from raysearch.evaluation.pool_report import PoolReport, ReplicaReport
from raysearch.evaluation.replica import Replica
from raysearch.evaluation.unit import MAX_ATTEMPTS, Cutter, Job, Task, UnitResult, unit_failure

_Asked = TypeVar("_Asked", bound=Task | Job)


class InlinePool:
    """Answers units one after another.

    Args:
        make_replica: Loads the model; called at once.
    """

    def __init__(self, make_replica: Callable[[], Replica]) -> None:
        self.n_replicas = 1
        self._replica = make_replica()
        self._own = ReplicaReport(platform.node())
        self.report = PoolReport([self._own])

    def run(self, units: Sequence[Task], cutter: Cutter | None = None) -> Iterator[tuple[Task, UnitResult]]:
        """See `Pool.run`."""
        return self._each(units, self._replica.evaluate)

    def perform(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Any]]:
        """See `Pool.perform`."""
        return self._each(jobs, lambda job: job.run(self._replica))

    def _each(self, units: Sequence[_Asked], answer: Callable[[_Asked], Any]) -> Iterator[tuple[_Asked, Any]]:
        for unit in units:
            started = time.perf_counter()
            answered = self._answer(unit, answer)
            passed = time.perf_counter() - started
            self._own.units += 1
            self._own.busy_s += passed
            self._own.present_s += passed
            yield unit, answered

    def _answer(self, unit: _Asked, answer: Callable[[_Asked], Any]) -> Any:
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                return answer(unit)
            except UserError:
                raise
            except Exception as error:
                self.report.units_redone += attempt < MAX_ATTEMPTS
                if attempt == MAX_ATTEMPTS:
                    raise EvaluationError(unit_failure(unit, error)) from error
        raise AssertionError("unreachable")

    def close(self) -> None:
        """See `Pool.close`."""
