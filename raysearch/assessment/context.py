"""The means of an assessment: the ledger and replicas."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from raysearch.calibration.calibration import Calibration
from raysearch.core.formatting import count, duration, written
from raysearch.core.mask import Mask
from raysearch.evaluation.evaluator import Evaluation, Evaluator
from raysearch.evaluation.pool import JobT, Pool
from raysearch.evaluation.progress import Progress
from raysearch.ledger.ledger import Ledger
from raysearch.searchers.base import Round


@dataclass(frozen=True)
class AssessContext:
    """The masks of one model, what is known of them, and who computes the rest.

    Args:
        masks: Distinct masks, the dense one among them.
        n_layers: N.
        make_pool: Gives the pool when it is first needed; it is not closed.
        on_progress: Told in a line how far it is.
    """

    masks: Sequence[Mask]
    n_layers: int
    ledger: Ledger
    make_pool: Callable[[], Pool]
    on_progress: Callable[[str], None]

    def evaluate(self, calibrations: Sequence[Calibration], title: str) -> tuple[dict[Mask, Evaluation], int]:
        """Evaluate some of the masks on calibrations.

        Returns:
            An evaluation of each mask, none without calibrations; and how many numbers, of a mask on a calibration, had
            to be computed.
        """
        if not calibrations:
            return {}, 0
        started = time.monotonic()

        def progress(now: Progress) -> None:
            if now.masks_elsewhere:
                return self.on_progress(f"{title}: waiting for {count(now.masks_elsewhere, 'mask')} of another process")
            share = now.layer_forwards / max(now.layer_forwards_planned, 1e-9)
            passed = time.monotonic() - started
            left = f", {duration(passed / share - passed)} left" if 0 < share < 1 and title != "perplexity" else ""
            self.on_progress(
                f"{title}: {share:.0%} of {count(now.masks_planned, 'mask')}, {count(now.n_replicas, 'replica')}"
                f"{written(now.tokens_per_s)}{left}"
            )

        known = [self.ledger.known(one.fingerprint, self.masks) for one in calibrations]
        computed = sum(
            len(of.get(mask, ())) < one.n_shards
            for one, of in zip(calibrations, known, strict=True)
            for mask in self.masks
        )
        evaluator = Evaluator(
            calibrations, self.n_layers, self.ledger, self.make_pool, on_progress=progress, owns_pool=False
        )
        with closing(evaluator):
            return evaluator.evaluate(Round(self.masks)), computed

    def run(self, jobs: Sequence[JobT]) -> Iterator[tuple[int, tuple[JobT, Any]]]:
        """Run jobs, and yield how many are done, and the last with its result."""
        return enumerate(filter(None, self.make_pool().run(jobs) if jobs else ()), start=1)
