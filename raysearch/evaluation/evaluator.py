"""From masks to losses: ask the ledger, run what it does not know on the pool, add the shards in order.

Statistics of the dense model take the same way.
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
from raysearch.evaluation.costs import as_passes, check_statistic, costs_of, layer_forwards, shards_of, tasks_of
from raysearch.evaluation.cutting import cut
from raysearch.evaluation.pool_report import PoolReport
from raysearch.evaluation.progress import Meter, Progress
from raysearch.evaluation.totals import total
from raysearch.evaluation.unit import Pool, Task, Unit, UnitResult
from raysearch.ledger.claims import Claims
from raysearch.ledger.ledger import Ledger, SubjectT

#: How often to look whether another process has finished what it claimed.
_POLL_S = 0.2

#: What is known of some subjects on one calibration, shard by shard.
Known = Mapping[SubjectT, Mapping[int, npt.NDArray[np.float64]]]


@dataclass(frozen=True)
class Evaluation:
    """What one mask loses on the whole calibration.

    Args:
        loss: In the objective's unit; None if the evaluation failed.
        failure: The cause, if it failed.
        answered: Whether the ledger knew all of it.
        parts: The loss on each calibration; None where that failed.
    """

    loss: float | None
    failure: str | None
    answered: bool
    parts: tuple[float | None, ...]


@dataclass
class Evaluator:
    """Answers "what do these masks lose?" with as little work as possible.

    Args:
        calibrations: What masks are judged on.
        n_layers: N, the layers of the dense model.
        ledger: What is already known, and where new evaluations go first.
        make_pool: Loads the replicas; called when the ledger cannot answer for the first time.
        weighting: How several calibrations give one loss; None for that of the first.
        on_progress: Told how far a round is.
    """

    calibrations: Sequence[Calibration]
    n_layers: int
    ledger: Ledger
    make_pool: Callable[[], Pool]
    weighting: WeightedObjective | None = None
    on_progress: Callable[[Progress], None] = lambda progress: None
    meter: Meter = field(default_factory=Meter)
    _pool: Pool | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self._claims = Claims(self.ledger)
        self._by_fingerprint = {calibration.fingerprint: calibration for calibration in self.calibrations}

    def evaluate(self, masks: Iterable[Mask]) -> dict[Mask, Evaluation]:
        """Evaluates masks on all samples of all calibrations.

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
        """Measures a statistic of the dense model on all samples, calibration by calibration.

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
        """What these masks and statistics take on an empty ledger, in passes of one layer over all samples."""
        return layer_forwards(self.calibrations, subjects, self.n_layers)

    @property
    def references(self) -> tuple[Mask, ...]:
        """The masks by which a weighted loss is scaled, which are evaluated beside any others."""
        return () if self.weighting is None else tuple(self.weighting.references(self.n_layers))

    @property
    def pool(self) -> Pool:
        """The replicas, loaded when they are first needed."""
        if self._pool is None:
            self._pool = self.make_pool()
        return self._pool

    @property
    def pool_report(self) -> PoolReport:
        """How the replicas have fared, if any were needed."""
        return PoolReport() if self._pool is None else self._pool.report

    def close(self) -> None:
        """Frees the pool and what was claimed. Closing twice is harmless."""
        try:
            self._claims.close()
        finally:
            if self._pool is not None:
                self._pool.close()
                self._pool = None

    def _complete(
        self, wanted: Sequence[SubjectT], shards: Mapping[str, range]
    ) -> tuple[Mapping[str, Known[SubjectT]], set[SubjectT]]:
        """All that is wanted on these shards, by calibration, once the ledger has it, and what was computed for that.

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
                    [task for name, pairs in claimed.items() for task in tasks_of(self._by_fingerprint[name], pairs)]
                )
                self._claims.release()
            else:
                elsewhere = {subject for pairs in missing.values() for subject, _ in pairs}
                self.on_progress(Progress(masks_elsewhere=len(elsewhere)))
                time.sleep(_POLL_S)

    def _run(self, tasks: Sequence[Task]) -> None:
        """Computes the tasks; each is in the ledger before the next is looked at."""
        pool = self.pool
        costs = costs_of(tasks, self._by_fingerprint, self.n_layers)
        layers_planned, heads_planned = as_passes(costs.values(), self.calibrations)
        tasks_left = Counter(subject for task in tasks for subject in task.subjects)
        done: list[tuple[int, int]] = []  # in forwards of single tokens
        before = self.meter.layer_forwards, self.meter.head_forwards

        def report() -> None:
            layers, heads = as_passes(done, self.calibrations)
            self.meter.layer_forwards, self.meter.head_forwards = before[0] + layers, before[1] + heads
            masks_done = sum(left == 0 for left in tasks_left.values())
            self.on_progress(
                Progress(
                    *(layers, max(layers, layers_planned), heads, heads_planned, masks_done, len(tasks_left)),
                    n_replicas=pool.n_replicas,
                    computing_s=self.meter.computing_s,
                )
            )

        report()
        for answer in pool.run(tasks, self._cut):
            if answer is not None:
                task, result = answer
                self.ledger.record(task.calibration, task.shard, result.values)
                tokens = sum(batch.n_tokens for batch in task.batches(self._by_fingerprint[task.calibration]))
                done.append((tokens * result.layer_forwards, tokens * result.head_forwards))
                tasks_left.subtract(task.subjects)
                self._count(result, tokens)
            report()

    def _cut(self, unit: Unit, replicas: float) -> tuple[Sequence[Unit], Sequence[Unit]]:
        """Cuts a unit for more replicas, where its masks share prefixes and a cut is worth what it adds."""
        objective = self._by_fingerprint[unit.calibration].objective
        if isinstance(objective, StateObjective) and (replicas > 1 or not objective.compares):
            return cut(unit, replicas, self.n_layers)
        return [unit], []  # where an objective compares, each piece would walk the dense model again

    def _count(self, result: UnitResult, tokens: int) -> None:
        """Puts on the meter what plans do not tell."""
        self.meter.computing_s += result.seconds
        self.meter.layer_tokens += result.layer_tokens
        self.meter.layer_tokens_by_row += result.layer_forwards * tokens
        self.meter.packed = self.meter.packed if result.packed is None else result.packed
        at_once = [each for each in (self.meter.samples_at_once, result.samples_at_once) if each is not None]
        self.meter.samples_at_once = min(at_once, default=None)

    def _losses(self, mask: Mask, known: Mapping[str, Known[Mask]]) -> list[float]:
        """What a mask loses on each calibration; not finite where that failed."""
        return [
            total(known[calibration.fingerprint][mask], calibration.n_shards) / calibration.divisor
            for calibration in self.calibrations
        ]

    def _evaluation(
        self, losses: Sequence[float], references: Mapping[Mask, Sequence[float]], answered: bool
    ) -> Evaluation:
        parts = tuple(loss if math.isfinite(loss) else None for loss in losses)
        judged = losses[:1] if self.weighting is None else losses
        failed = [loss for loss in judged if not math.isfinite(loss)]
        if failed:
            return Evaluation(None, f"the loss is {failed[0]}", answered, parts)
        loss = losses[0] if self.weighting is None else self.weighting.combine(losses, references)
        return Evaluation(loss, None, answered, parts)


def _finite(mask: Mask, losses: Sequence[float]) -> Sequence[float]:
    """The losses of a reference mask, without which there is none of any other."""
    for loss in losses:
        if not math.isfinite(loss):
            raise EvaluationError(f"mask {mask}, by which the weighted losses are scaled, loses {loss}")
    return losses


def _missing(wanted: Iterable[SubjectT], shards: Iterable[int], known: Known[SubjectT]) -> list[tuple[SubjectT, int]]:
    """What the ledger lacks, shard by shard."""
    return [(subject, shard) for shard in shards for subject in wanted if shard not in known.get(subject, ())]
