"""Measures the time of stages, and reports the time left of jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from raysearch.evaluation.pool import Pool, done_jobs
from raysearch.evaluation.unit import JobT
from raysearch.text.numbers import remaining


@contextmanager
def timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Add the time within the context to the seconds of a stage.

    Args:
        seconds: The seconds of each stage.
        stage: The stage.
    """
    started = time.monotonic()
    yield
    seconds[stage] = seconds.get(stage, 0.0) + time.monotonic() - started


def run_jobs(
    jobs: Sequence[JobT], replicas: Callable[[], Pool], title: str, on_progress: Callable[[str], None]
) -> Iterator[tuple[JobT, Any]]:
    """Run jobs on replicas, and yield each with its result.

    Args:
        jobs: The jobs.
        replicas: Returns the pool; called only if there are jobs.
        title: What the jobs compute, for the progress.
        on_progress: Receives a line after each job.

    Yields:
        A job and its result, as soon as it is done.
    """
    started = time.monotonic()
    n_jobs = len(jobs)
    for n_done, job_and_result in done_jobs(jobs, replicas):
        yield job_and_result
        time_left = remaining(time.monotonic() - started, n_done, n_jobs)
        on_progress(f"{title}: {n_done} of {n_jobs} jobs, {time_left} left")
