"""From masks to losses: ask the ledger, compute the rest on the pool, add the shards in order.

Statistics of the dense model go the same way.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from raysearch.calibration.calibration import Calibration
from raysearch.calibration.objectives.base import StateObjective
from raysearch.calibration.objectives.weighted import WeightedObjective
from raysearch.core.mask import Mask
from raysearch.core.statistic import Statistic, Subject
from raysearch.errors import EvaluationError
from raysearch.evaluation.costs import as_passes, check_statistic, costs_of, layer_forwards, shards_of, units_of
from raysearch.evaluation.cutting import cut
from raysearch.evaluation.pool import Pool, PoolStats
from raysearch.evaluation.progress import Meter, Progress
from raysearch.evaluation.totals import total
from raysearch.evaluation.unit import MaskUnit, Unit, UnitResult
from raysearch.ledger.claims import Claims
from raysearch.ledger.ledger import Ledger, SubjectT

#: How often to look whether another process has finished what it claimed.
_POLL_S = 0.2

#: The values of some subjects on one calibration, by shard.
Known = Mapping[SubjectT, Mapping[int, npt.NDArray[np.float64]]]


@dataclass(frozen=True)
class Evaluation:
    """The loss of one mask on the whole calibration.

    Args:
        loss: In the objective's unit; None if the evaluation failed.
        failure: The cause, if it failed.
        cached: Whether the ledger knew all of it.
        parts: The loss on each calibration; None where that failed.
    """

    loss: float | None
    failure: str | None
    cached: bool
    parts: tuple[float | None, ...]


@dataclass
class Evaluator:
    """Evaluates masks with as little work as possible.

    Args:
        calibrations: What masks are evaluated on.
        n_layers: N, the layers of the dense model.
        ledger: What is already known, and where new evaluations go first.
        make_pool: Gives the pool; called when something has to be computed for the first time.
        weighting: How several calibrations give one loss; None for that of the first.
        on_progress: Called with how far a round is.
        owns_pool: Whether the pool is closed with this evaluator; else it is somebody else's, who closes it.
    """

    calibrations: Sequence[Calibration]
    n_layers: int
    ledger: Ledger
    make_pool: Callable[[], Pool]
    weighting: WeightedObjective | None = None
    on_progress: Callable[[Progress], None] = lambda progress: None
    owns_pool: bool = True
    meter: Meter = field(default_factory=Meter)
    _pool: Pool | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self._claims = Claims(self.ledger)
        self._by_fingerprint = {calibration.fingerprint: calibration for calibration in self.calibrations}

    def evaluate(self, masks: Iterable[Mask]) -> dict[Mask, Evaluation]:
        """Evaluate masks on all samples of all calibrations.

        Args:
            masks: Distinct masks.

        Returns:
            An evaluation for each, in the order given.

        Raises:
            EvaluationError: A unit failed for good.
        """
        wanted = tuple(masks)
        known, computed = self._complete(sorted({*wanted, *self.references}), shards_of(self.calibrations, Mask()))
        losses = {mask: self._losses(mask, known) for mask in {*wanted, *self.references}}
        reference_losses = {mask: _finite(mask, losses[mask]) for mask in self.references}
        return {mask: self._evaluation(losses[mask], reference_losses, mask not in computed) for mask in wanted}

    def measure(self, statistic: Statistic) -> npt.NDArray[np.float64]:
        """Measure a statistic of the dense model on all samples, calibration by calibration.

        Returns:
            Its rows, float64, of the shape that `Statistic` states.

        Raises:
            UserError: It takes gradients that the objective does not have.
            EvaluationError: A shard failed for good, or the statistic is not finite.
        """
        check_statistic(statistic, [calibration.objective for calibration in self.calibrations])
        shards = shards_of(self.calibrations, statistic)
        known, _ = self._complete((statistic,), shards)
        rows = np.concatenate([known[name][statistic][shard] for name, of in shards.items() for shard in of])
        rows = rows.reshape(-1, *statistic.shape(self.n_layers))
        if not np.isfinite(rows).all():
            raise EvaluationError(f"{statistic} is not finite; use model.dtype=bfloat16 or float32")
        return rows

    def layer_forwards(self, subjects: Iterable[Subject]) -> float:
        """Return the cost of masks and statistics on an empty ledger, in passes of one layer over all samples."""
        return layer_forwards(self.calibrations, subjects, self.n_layers)

    @property
    def references(self) -> tuple[Mask, ...]:
        """The masks that scale a weighted loss; they are evaluated beside any others."""
        return () if self.weighting is None else tuple(self.weighting.references(self.n_layers))

    @property
    def pool(self) -> Pool:
        """The pool, opened on first use."""
        if self._pool is None:
            self._pool = self.make_pool()
        return self._pool

    @property
    def pool_stats(self) -> PoolStats:
        """How the replicas have been used; nothing if none were needed."""
        return PoolStats() if self._pool is None else self._pool.stats

    def close(self) -> None:
        """Release what was claimed, and close the pool if it is this evaluator's. Closing twice is harmless."""
        try:
            self._claims.close()
        finally:
            if self._pool is not None and self.owns_pool:
                self._pool.close()
            self._pool = None

    def _complete(
        self, wanted: Sequence[SubjectT], shards: Mapping[str, range]
    ) -> tuple[Mapping[str, Known[SubjectT]], set[SubjectT]]:
        """Return all that is wanted on these shards, by calibration, and the subjects that were computed for it.

        Masks come in mask order, so that neighbours in a large round, which is cut, share prefixes.
        """
        computed: set[SubjectT] = set()  # here, in part; what another search computes meanwhile is answered too
        while True:
            known = {name: self.ledger.known(name, wanted) for name in shards}
            missing = {name: _missing(wanted, of, known[name]) for name, of in shards.items()}
            if not any(missing.values()):
                return known, computed
            claimed = {name: self._claims.take(name, pairs) for name, pairs in missing.items() if pairs}
            if any(claimed.values()):
                computed.update(subject for pairs in claimed.values() for subject, _ in pairs)
                self._run(
                    [unit for name, pairs in claimed.items() for unit in units_of(self._by_fingerprint[name], pairs)]
                )
                self._claims.release()
            else:
                elsewhere = {subject for pairs in missing.values() for subject, _ in pairs}
                self.on_progress(Progress(masks_elsewhere=len(elsewhere)))
                time.sleep(_POLL_S)

    def _run(self, units: Sequence[Unit]) -> None:
        """Compute the units; each is in the ledger before the next is looked at."""
        pool = self.pool
        costs = costs_of(units, self._by_fingerprint, self.n_layers)
        layers_planned, heads_planned = as_passes(costs.values(), self.calibrations)
        units_left = Counter(subject for unit in units for subject in unit.subjects)
        done: list[tuple[int, int]] = []  # in forwards of single tokens
        before = self.meter.layer_forwards, self.meter.head_forwards

        def show_progress() -> None:
            layers, heads = as_passes(done, self.calibrations)
            self.meter.layer_forwards, self.meter.head_forwards = before[0] + layers, before[1] + heads
            masks_done = sum(left == 0 for left in units_left.values())
            self.on_progress(
                Progress(
                    *(layers, max(layers, layers_planned), heads, heads_planned, masks_done, len(units_left)),
                    n_replicas=pool.n_replicas,
                    computing_s=self.meter.computing_s,
                )
            )

        show_progress()
        for answer in pool.run(units, self._by_fingerprint, self._cut):
            if answer is not None:
                unit, result = answer
                self.ledger.record(unit.calibration, unit.shard, result.values)
                tokens = sum(batch.n_tokens for batch in unit.batches(self._by_fingerprint[unit.calibration]))
                done.append((tokens * result.layer_forwards, tokens * result.head_forwards))
                units_left.subtract(unit.subjects)
                self._count(result, tokens)
            show_progress()

    def _cut(self, unit: MaskUnit, replicas: float) -> tuple[Sequence[MaskUnit], Sequence[MaskUnit]]:
        """Cut a unit for more replicas, if its masks share prefixes and a cut is worth what it adds."""
        objective = self._by_fingerprint[unit.calibration].objective
        if isinstance(objective, StateObjective) and (replicas > 1 or not objective.compares):
            return cut(unit, replicas, self.n_layers)
        return [unit], []  # each piece for an objective that compares would walk the dense model again

    def _count(self, result: UnitResult, tokens: int) -> None:
        """Add to the meter what plans do not tell."""
        self.meter.computing_s += result.seconds
        self.meter.layer_tokens += result.layer_tokens
        self.meter.layer_tokens_by_row += result.layer_forwards * tokens
        self.meter.packed = self.meter.packed if result.packed is None else result.packed
        at_once = [each for each in (self.meter.samples_at_once, result.samples_at_once) if each is not None]
        self.meter.samples_at_once = min(at_once, default=None)

    def _losses(self, mask: Mask, known: Mapping[str, Known[Mask]]) -> list[float]:
        """Return the loss of a mask on each calibration; not finite if it failed there."""
        return [
            total(known[calibration.fingerprint][mask], calibration.n_shards) / calibration.divisor
            for calibration in self.calibrations
        ]

    def _evaluation(
        self, losses: Sequence[float], references: Mapping[Mask, Sequence[float]], cached: bool
    ) -> Evaluation:
        parts = tuple(loss if math.isfinite(loss) else None for loss in losses)
        weighed = losses[:1] if self.weighting is None else losses
        failed = [loss for loss in weighed if not math.isfinite(loss)]
        if failed:
            return Evaluation(None, f"the loss is {failed[0]}", cached, parts)
        loss = losses[0] if self.weighting is None else self.weighting.combine(losses, references)
        return Evaluation(loss, None, cached, parts)


def _finite(mask: Mask, losses: Sequence[float]) -> Sequence[float]:
    """Return the losses of a reference mask, which must be finite for any weighted loss."""
    for loss in losses:
        if not math.isfinite(loss):
            raise EvaluationError(f"mask {mask}, by which the weighted losses are scaled, loses {loss}")
    return losses


def _missing(wanted: Iterable[SubjectT], shards: Iterable[int], known: Known[SubjectT]) -> list[tuple[SubjectT, int]]:
    """Return what the ledger lacks, shard by shard."""
    return [(subject, shard) for shard in shards for subject in wanted if shard not in known.get(subject, ())]
