"""From masks to losses: ask the ledger, compute the rest on the pool, add the shards in order.

Statistics of the dense model go the same way.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from raysearch.calibration.calibration import Calibration
from raysearch.calibration.objectives.base import StateObjective
from raysearch.calibration.objectives.weighted import WeightedObjective
from raysearch.core.mask import Mask
from raysearch.core.screened import Screened
from raysearch.core.statistic import Statistic, Subject
from raysearch.errors import EvaluationError
from raysearch.evaluation.costs import as_passes, check_statistic, planned_passes, shards_of, units_of
from raysearch.evaluation.cutting import cut
from raysearch.evaluation.pool import Pool, PoolStats
from raysearch.evaluation.progress import Meter, Progress
from raysearch.evaluation.screening import Contest, Screener, Screening
from raysearch.evaluation.totals import total
from raysearch.evaluation.unit import MaskUnit, Unit, UnitResult
from raysearch.ledger.claims import Claims
from raysearch.ledger.ledger import Ledger, SubjectT
from raysearch.searchers.base import Round, Scores

#: How often to look whether another process has finished what it claimed.
_POLL_S = 0.2

#: Some shards of each calibration, by its fingerprint.
Shards = Mapping[str, tuple[int, ...]]

#: The values of some subjects on one calibration, by shard.
Known = Mapping[SubjectT, Mapping[int, npt.NDArray[np.float64]]]


@dataclass(frozen=True)
class Evaluation:
    """The loss of one mask on the whole calibration."""

    loss: float | None  #: in the objective's unit; None if the evaluation failed, or the mask was screened
    failure: str | None
    cached: bool  #: whether the ledger knew all of it
    #: The loss on each calibration; None where that failed; empty if the mask was screened.
    parts: tuple[float | None, ...]
    #: An estimate, if the mask was dropped or accepted before its evaluation was complete.
    screened: Screened | None = None


def scores_of(proposed: Round, evaluations: Mapping[Mask, Evaluation]) -> Scores:
    """Return what the searcher that proposed a round is told of its masks."""
    asked = {mask: evaluations[mask] for mask in proposed.masks}
    screened = {mask: one.screened for mask, one in asked.items() if one.screened is not None}
    return Scores(
        {mask: one.loss for mask, one in asked.items() if one.loss is not None},
        {mask: one.failure for mask, one in asked.items() if one.failure is not None},
        {mask: estimate.loss for mask, estimate in screened.items() if not estimate.accepted},
        proposed.keep,
        proposed.ties,
        frozenset(mask for mask, estimate in screened.items() if estimate.accepted),
    )


@dataclass
class Evaluator:
    """Evaluates masks with as little work as possible."""

    calibrations: Sequence[Calibration]
    n_layers: int
    ledger: Ledger  #: what is already known, and where new evaluations go first
    make_pool: Callable[[], Pool]  #: called when something has to be computed for the first time
    weighting: WeightedObjective | None = None  #: how several calibrations give one loss; None for that of the first
    head_cost: float = 1.0  #: of a mask, in runs of a layer (`raysearch.evaluation.costs.head_cost`); it guides cuts
    screening: Screening | None = None  #: how the evaluation of masks is stopped early; None to evaluate all in full
    on_progress: Callable[[Progress], None] = lambda progress: None
    owns_pool: bool = True  #: whether the pool is closed with this evaluator
    meter: Meter = field(default_factory=Meter)
    _pool: Pool | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self._claims = Claims(self.ledger)
        self._by_fingerprint = {calibration.fingerprint: calibration for calibration in self.calibrations}
        self._weighting = self.weighting or WeightedObjective((1.0,), "none")  # of the first alone
        self._references = sorted(self._weighting.references(self.n_layers))  # evaluated beside any others
        self._screener = None if self.screening is None else Screener(self.screening, self.calibrations)
        self._all_shards = self._screener.stages[-1] if self._screener else shards_of(self.calibrations, Mask())
        self._stage, self._stats = 0, PoolStats()
        self._asked: dict[tuple[str, Subject], int] = {}  # of how many shards, in their order
        self._computed: set[Subject] = set()  # in this round, in part; what others computed meanwhile is cached
        self._known: dict[str, dict[Any, Mapping[int, npt.NDArray[np.float64]]]] = {}  # what this round has read

    def evaluate(self, proposed: Round) -> dict[Mask, Evaluation]:
        """Evaluate the masks of a round, in its order, on all samples of all calibrations, but those that are screened.

        Raises:
            EvaluationError: A unit failed for good.
        """
        self._computed.clear()
        self._known.clear()
        screener = self._screener
        if screener is None:
            return self._in_full(proposed.masks)
        screener.factors = self._weighting.factors(self._complete_references())
        contest = screener.contest(proposed)
        return self._in_full(proposed.masks) if contest is None else self._screen(proposed.masks, contest)

    def _in_full(self, wanted: Sequence[Mask]) -> dict[Mask, Evaluation]:
        everyone = sorted({*wanted, *self._references})
        known = self._complete(everyone, self._all_shards)
        if self._screener is not None:
            self._screener.see(everyone, len(self._screener.stages) - 1, known)
        references = self._reference_losses(known)
        return {mask: self._evaluation(mask, self._losses(mask, known), references) for mask in wanted}

    def _screen(self, wanted: Sequence[Mask], contest: Contest) -> dict[Mask, Evaluation]:
        """Evaluate masks stage by stage, and stop where it is beyond doubt whether they are among the best."""
        screener, left = contest.screener, {*wanted}
        for stage, shards in enumerate(screener.stages):
            self._stage = stage + 1
            screener.see(left, stage, self._complete(sorted(left), shards))
            contest.decide()
            left -= contest.dropped | contest.accepted
            if contest.is_settled:
                break  # else those that are left would wait for each other stage by stage
        self._stage = 0
        left |= set() if contest.round.beat is None else {contest.round.beat}
        while True:
            found = self._in_full(sorted(left))
            failed = {mask for mask, one in found.items() if one.failure}
            if contest.winners & failed or failed >= left - {Mask()}:
                return self._in_full(wanted)  # others were decided by a mask that failed on later shards
            losses = {mask: one.loss for mask, one in found.items() if mask and one.loss is not None}
            best = min(losses, key=lambda mask: (losses[mask], mask), default=Mask())
            estimates = screener.screened([mask for mask in wanted if mask not in found], best, losses[best])
            screened = {mask: replace(one, accepted=mask in contest.accepted) for mask, one in estimates.items()}
            leaders = {mask for mask, one in screened.items() if one.accepted and one.loss < losses[best]}
            if not leaders:
                break
            left |= leaders  # what seems the best of the round is known exactly
        for mask, estimate in screened.items():
            found[mask] = Evaluation(None, None, mask not in self._computed, (), estimate)
        return {mask: found[mask] for mask in wanted}

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
        known = self._complete((statistic,), shards)
        rows = np.concatenate([known[name][statistic][shard] for name, of in shards.items() for shard in of])
        rows = rows.reshape(-1, *statistic.shape(self.n_layers))
        if not np.isfinite(rows).all():
            raise EvaluationError(f"{statistic} is not finite; use model.dtype=bfloat16 or float32")
        return rows

    @property
    def pool(self) -> Pool:
        """The pool, opened on first use."""
        if self._pool is None:
            self._pool = self.make_pool()
        return self._pool

    @property
    def pool_stats(self) -> PoolStats:
        """How the replicas have been used; nothing if none were needed."""
        return self._stats if self._pool is None else self._pool.stats

    def combine(self, losses: Sequence[float]) -> float:
        """Return the one loss that losses on each calibration come to."""
        return self._weighting.combine(losses[: len(self._weighting.weights)], self._complete_references())

    def rest(self) -> None:
        """Close the pool if it is this evaluator's, to free its memory; one is opened again where it is needed."""
        if self._pool is not None and self.owns_pool:
            self._stats = self._pool.stats
            self._pool.close()
            self._pool = None

    def close(self) -> None:
        """Release what was claimed, and close the pool if it is this evaluator's. Closing twice is harmless."""
        try:
            self._claims.close()
        finally:
            self.rest()

    def _complete(self, wanted: Sequence[SubjectT], shards: Shards) -> Mapping[str, Known[SubjectT]]:
        """Return all that is wanted on these shards, by calibration; compute what the ledger lacks.

        Masks come in mask order, so that neighbours in a large round, which is cut, share prefixes.
        """
        self._count_alone(wanted, shards)
        known = {name: self._known.setdefault(name, {}) for name in shards}
        missing = {name: _missing(wanted, of, known[name]) for name, of in shards.items()}
        while any(missing.values()):
            for name, pairs in missing.items():
                known[name].update(self.ledger.known(name, {subject for subject, _ in pairs}))
            missing = {name: _missing(wanted, of, known[name]) for name, of in shards.items()}
            claimed = {name: self._claims.take(name, pairs) for name, pairs in missing.items() if pairs}
            if any(claimed.values()):
                self._computed.update(subject for pairs in claimed.values() for subject, _ in pairs)
                self._run(claimed)
                self._claims.release()
            elif any(missing.values()):
                elsewhere = {subject for pairs in missing.values() for subject, _ in pairs}
                self.on_progress(Progress(masks_elsewhere=len(elsewhere), elsewhere=", ".join(self._claims.others())))
                time.sleep(_POLL_S)
        return known

    def _count_alone(self, wanted: Sequence[Subject], shards: Shards) -> None:
        """Add to the meter what this would have cost on an empty ledger."""
        units: list[Unit] = []
        for name, of in shards.items():
            new = [(subject, shard) for subject in wanted for shard in of[self._asked.get((name, subject), 0) :]]
            self._asked.update(((name, subject), len(of)) for subject, _ in new)
            units += units_of(self._by_fingerprint[name], new)
        layers, heads = planned_passes(units, self.calibrations, self.n_layers)
        self.meter.layer_forwards_alone += layers
        self.meter.head_forwards_alone += heads

    def _run(self, claimed: Mapping[str, Sequence[tuple[Subject, int]]]) -> None:
        """Compute what was claimed, by calibration; each unit is in the ledger before the next is looked at."""
        units = [unit for name, pairs in claimed.items() for unit in units_of(self._by_fingerprint[name], pairs)]
        pool = self.pool
        layers_planned, heads_planned = planned_passes(units, self.calibrations, self.n_layers)
        units_left = Counter(subject for unit in units for subject in unit.subjects)
        n_subjects = len(units_left)
        done = 0, 0  # forwards of layers and heads, of single tokens
        before = self.meter.layer_forwards, self.meter.head_forwards

        def show_progress() -> None:
            layers, heads = as_passes(*done, self.calibrations)
            self.meter.layer_forwards, self.meter.head_forwards = before[0] + layers, before[1] + heads
            n_done = n_subjects - len(units_left)
            self.on_progress(
                Progress(
                    *(layers, max(layers, layers_planned), heads, heads_planned, n_done, n_subjects),
                    n_replicas=pool.n_replicas,
                    computing_s=self.meter.computing_s,
                    stage=self._stage,
                    stages=0 if self._screener is None else len(self._screener.stages),
                    tokens_written=self.meter.tokens_written,
                )
            )

        show_progress()
        for answer in pool.run(units, self.calibrations, self._cut):
            if answer is not None:
                unit, result = answer
                self.ledger.record(unit.calibration, unit.shard, result.values, result.texts)
                tokens = sum(batch.n_tokens for batch in unit.batches(self._by_fingerprint[unit.calibration]))
                done = done[0] + tokens * result.layer_forwards, done[1] + tokens * result.head_forwards
                for subject in unit.subjects:
                    units_left[subject] -= 1
                    if not units_left[subject]:
                        del units_left[subject]
                self._count(result, tokens)
            show_progress()

    def _cut(self, unit: MaskUnit, replicas: float) -> tuple[Sequence[MaskUnit], Sequence[MaskUnit]]:
        """Cut a unit for more replicas, if its masks share prefixes and a cut is worth what it adds."""
        objective = self._by_fingerprint[unit.calibration].objective
        if isinstance(objective, StateObjective) and (replicas > 1 or not objective.compares):
            return cut(unit, replicas, self.n_layers, self.head_cost * objective.heads)
        return [unit], []  # each piece for an objective that compares would walk the dense model again

    def _count(self, result: UnitResult, tokens: int) -> None:
        """Add to the meter what plans do not tell."""
        self.meter.computing_s += result.seconds
        self.meter.tokens_written += sum(one.n_tokens for texts in result.texts.values() for one in texts)
        self.meter.layer_tokens += result.layer_tokens
        self.meter.layer_tokens_by_row += result.layer_forwards * tokens
        self.meter.packed = self.meter.packed if result.packed is None else result.packed
        at_once = [each for each in (self.meter.samples_at_once, result.samples_at_once) if each is not None]
        self.meter.samples_at_once = min(at_once, default=None)

    def _complete_references(self) -> dict[Mask, Sequence[float]]:
        """Return `_reference_losses`, computed where the ledger lacks them."""
        return self._reference_losses(self._complete(self._references, self._all_shards))

    def _reference_losses(self, known: Mapping[str, Known[Mask]]) -> dict[Mask, Sequence[float]]:
        """Return the losses, on each calibration, of the masks that scale a weighted loss."""
        found: dict[Mask, Sequence[float]] = {mask: self._losses(mask, known) for mask in self._references}
        for mask, losses in found.items():
            for loss in losses:
                if not math.isfinite(loss):
                    raise EvaluationError(f"the weighted losses are scaled by the loss of {mask}, which is {loss}")
        return found

    def _losses(self, mask: Mask, known: Mapping[str, Known[Mask]]) -> list[float]:
        """Return the loss of a mask on each calibration; not finite if it failed there."""
        return [
            total(known[calibration.fingerprint][mask], calibration.n_shards) / calibration.divisor
            for calibration in self.calibrations
        ]

    def _evaluation(
        self, mask: Mask, losses: Sequence[float], references: Mapping[Mask, Sequence[float]]
    ) -> Evaluation:
        weighed = losses[: len(self._weighting.weights)]
        failure = next((f"the loss is {loss}" for loss in weighed if not math.isfinite(loss)), None)
        loss = self._weighting.combine(weighed, references) if failure is None else None
        parts = tuple(loss if math.isfinite(loss) else None for loss in losses)
        return Evaluation(loss, failure, mask not in self._computed, parts)


def _missing(wanted: Iterable[SubjectT], shards: Iterable[int], known: Known[SubjectT]) -> list[tuple[SubjectT, int]]:
    """Return what the ledger lacks, shard by shard."""
    return [(subject, shard) for shard in shards for subject in wanted if shard not in known.get(subject, ())]
