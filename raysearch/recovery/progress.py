"""How long something has taken so far, and what is left of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from raysearch.core.formatting import duration
from raysearch.evaluation.pool import JobT, Pool


@dataclass
class Pace:
    """The time since something began."""

    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Seconds that have passed."""
        return time.monotonic() - self.started

    def left(self, done: float, whole: float) -> float | None:
        """Return the seconds that are left, given how much of a whole is done; None where nothing is."""
        return self.seconds / done * (whole - done) if done else None


@contextmanager
def timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Add the time within the context to the seconds of a stage."""
    pace = Pace()
    yield
    seconds[stage] = seconds.get(stage, 0.0) + pace.seconds


def run_jobs(
    jobs: Sequence[JobT], replicas: Callable[[], Pool], title: str, on_progress: Callable[[str], None]
) -> Iterator[tuple[JobT, Any]]:
    """Run jobs on the dense model, and yield each with its result; `replicas` gives the pool if it is needed."""
    pace, n_jobs = Pace(), len(jobs)
    for done, found in enumerate(filter(None, replicas().run(jobs) if jobs else ()), start=1):
        yield found
        left = duration(pace.left(done, n_jobs))
        on_progress(f"{title} of the dense model: {done} of {n_jobs} jobs, {left} left")
