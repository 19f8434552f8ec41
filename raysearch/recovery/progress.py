"""How long something has taken so far, and what is left of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from raysearch.core.formatting import remaining
from raysearch.evaluation.pool import Pool, done_jobs
from raysearch.evaluation.unit import JobT


@contextmanager
def timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Add the time within the context to the seconds of a stage."""
    started = time.monotonic()
    yield
    seconds[stage] = seconds.get(stage, 0.0) + time.monotonic() - started


def run_jobs(
    jobs: Sequence[JobT], replicas: Callable[[], Pool], title: str, on_progress: Callable[[str], None]
) -> Iterator[tuple[JobT, Any]]:
    """Run jobs on the dense model, and yield each with its result; `replicas` gives the pool if it is needed."""
    started, n_jobs = time.monotonic(), len(jobs)
    for done, found in done_jobs(jobs, replicas):
        yield found
        left = remaining(time.monotonic() - started, done, n_jobs)
        on_progress(f"{title} of the dense model: {done} of {n_jobs} jobs, {left} left")
