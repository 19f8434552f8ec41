"""Evaluates masks: reads losses from the ledger, computes the missing ones on the pool, and adds shards in order.

Statistics of the dense model are measured in the same way.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from raysearch.calibration.calibration import Calibration
from raysearch.calibration.objectives.base import StateObjective
from raysearch.calibration.objectives.weighted import WeightedObjective
from raysearch.core.evaluations import Key, RecordedValues, Values
from raysearch.core.mask import Mask
from raysearch.core.scale import Scale, Scales
from raysearch.core.screened import Screened
from raysearch.core.site import Sites
from raysearch.core.statistic import Statistic, Subject
from raysearch.errors import EvaluationError
from raysearch.evaluation.costs import as_passes, check_statistic, planned_passes, shards_of, units_of
from raysearch.evaluation.cutting import cut
from raysearch.evaluation.pool import Pool, PoolStats
from raysearch.evaluation.progress import Meter, Progress
from raysearch.evaluation.screening import Contest, Screener, Screening
from raysearch.evaluation.totals import total
from raysearch.evaluation.unit import MaskUnit, UnitResult
from raysearch.ledger.claims import Claims
from raysearch.ledger.ledger import Ledger
from raysearch.searchers.base import Accepted, Dropped, Failed, Loss, Outcome, Round

#: Seconds between two looks for results that another process computes.
_POLL_S = 0.2

#: Numbers of shards, by the fingerprint of their calibration.
Shards = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Evaluation:
    """The evaluation of one mask on the whole calibration.

    Args:
        outcome: Its loss, in the objective's unit, or why it has none.
        cached: Whether all of it was in the ledger, or computed by another process.
        parts: The loss on each calibration; None on those where it failed; empty if the mask was screened.
        screened: The estimate with its bounds, if the mask was dropped or accepted.
        scales: The factors of its cuts by the first calibration, if masks are repaired by them.
    """

    outcome: Outcome
    cached: bool
    parts: tuple[float | None, ...] = ()
    screened: Screened | None = None
    scales: tuple[Scale, ...] = ()

    @property
    def loss(self) -> float | None:
        """The loss; None if the evaluation failed, or the mask was screened."""
        return self.outcome.value if isinstance(self.outcome, Loss) else None

    @property
    def failure(self) -> str | None:
        """The cause of a failure; None if the evaluation did not fail."""
        return self.outcome.cause if isinstance(self.outcome, Failed) else None


@dataclass
class Evaluator:
    """Evaluates masks and measures statistics, and computes only what the ledger does not contain.

    Args:
        calibrations: The calibrations on which masks are evaluated.
        sites: The layers of the model, with their halves if a mask has halves.
        ledger: The store of earlier evaluations; new ones are written to it before they are used.
        make_pool: Returns the pool; called when something must be computed for the first time.
        weighting: Combines the losses on several calibrations into one; None to use the loss on the first.
        head_cost: The cost of the head, in layer-forwards (`raysearch.evaluation.costs.head_cost`); it guides cuts.
        screening: When the evaluation of a mask stops early; None to evaluate all masks in full.
        removable: The sites that masks remove, by which screening predicts losses; None for the layers.
        on_progress: Called whenever something has been computed.
        owns_pool: Whether the pool is closed with this evaluator.
        meter: Counts what this evaluator computes.
    """

    calibrations: Sequence[Calibration]
    sites: Sites
    ledger: Ledger
    make_pool: Callable[[], Pool]
    weighting: WeightedObjective | None = None
    head_cost: float = 1.0
    screening: Screening | None = None
    removable: Sites | None = None
    on_progress: Callable[[Progress], None] = lambda progress: None
    owns_pool: bool = True
    meter: Meter = field(default_factory=Meter)
    _pool: Pool | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self._claims = Claims(self.ledger)
        self._by_fingerprint = {calibration.fingerprint: calibration for calibration in self.calibrations}
        self._weighting = self.weighting or WeightedObjective((1.0,), "none")  # the loss on the first calibration
        self._references = sorted(self._weighting.references(self.sites))  # evaluated with every round
        self._screener: Screener | None = None
        if self.screening is not None:
            self._screener = Screener(self.screening, self.calibrations, self.removable or self.sites)
        self._all_shards = self._screener.stages[-1] if self._screener else shards_of(self.calibrations, Mask())
        self._stage = 0
        self._stats = PoolStats()
        #: How many shards of a calibration have been requested for a subject, in screening order.
        self._n_requested: dict[tuple[str, Subject], int] = {}
        #: The subjects of this round that this process computed, at least in part; the others were cached.
        self._computed: set[Subject] = set()
        #: The values that this round has read from the ledger.
        self._values: dict[str, dict[Subject, Mapping[int, Values]]] = defaultdict(dict)
        #: The means of `Statistic.NORM_RATIO` by calibration, if masks are repaired by their scales.
        self._ratios: dict[str, npt.NDArray[np.float64]] = {}

    @property
    def repairs(self) -> bool:
        """Whether masks are repaired before they are evaluated."""
        return any(calibration.repair != "none" for calibration in self.calibrations)

    def evaluate(self, proposed: Round) -> dict[Mask, Evaluation]:
        """Evaluate the masks of a round on all samples of all calibrations, unless they are screened.

        Returns:
            The evaluation of each mask, in the order of the round.

        Raises:
            EvaluationError: A unit failed for good.
        """
        self._computed.clear()
        self._values.clear()
        if self.repairs and not self._ratios:
            self._measure_ratios()
        evaluations = self._evaluate(proposed)
        scales = self._scales(self.calibrations[0].fingerprint, proposed.masks)
        if scales is None:
            return evaluations
        return {mask: replace(evaluation, scales=scales.of_mask(mask)) for mask, evaluation in evaluations.items()}

    def _evaluate(self, proposed: Round) -> dict[Mask, Evaluation]:
        screener = self._screener
        if screener is None:
            return self._in_full(proposed.masks)
        screener.factors = self._weighting.factors(self._complete_references())
        contest = screener.contest(proposed)
        return self._in_full(proposed.masks) if contest is None else self._screen(proposed.masks, contest)

    def _scales(self, calibration: str, masks: Iterable[Mask]) -> Scales | None:
        """Return the factors of the cuts of masks by a calibration; None if its masks are not repaired."""
        if self._by_fingerprint[calibration].repair == "none":
            return None
        return Scales.of_masks(masks, self._ratios[calibration])

    def _in_full(self, masks: Sequence[Mask]) -> dict[Mask, Evaluation]:
        with_references = sorted({*masks, *self._references})
        values = self._complete(with_references, self._all_shards)
        if self._screener is not None:
            self._screener.see(with_references, len(self._screener.stages) - 1, values)
        references = self._reference_losses(values)
        return {mask: self._evaluation(mask, self._losses(mask, values), references) for mask in masks}

    def _screen(self, masks: Sequence[Mask], contest: Contest) -> dict[Mask, Evaluation]:
        """Evaluate masks stage by stage, until it is clear beyond doubt whether they are among the best."""
        screener = contest.screener
        undecided = {*masks}
        for stage, shards in enumerate(screener.stages):
            self._stage = stage + 1
            screener.see(undecided, stage, self._complete(sorted(undecided), shards))
            contest.decide()
            undecided -= contest.dropped | contest.accepted
            if contest.is_settled:
                break  # the remaining masks need not wait for each other at each stage
        self._stage = 0
        if contest.round.beat is not None:
            undecided.add(contest.round.beat)
        while True:
            evaluations = self._in_full(sorted(undecided))
            losses: dict[Mask, float] = {}  # without the dense model, which is not compared
            failed: set[Mask] = set()
            for mask, evaluation in evaluations.items():
                if evaluation.loss is None:
                    failed.add(mask)
                elif mask:
                    losses[mask] = evaluation.loss
            if not losses or contest.winners & failed:
                return self._in_full(masks)  # a mask that failed on later shards had decided about other masks
            best = min(losses, key=lambda mask: (losses[mask], mask))
            estimates = screener.screened([mask for mask in masks if mask not in evaluations], best, losses[best])
            leaders = {
                mask
                for mask, estimate in estimates.items()
                if mask in contest.accepted and estimate.loss < losses[best]
            }
            if not leaders:
                break
            undecided |= leaders  # the mask that seems the best of the round needs an exact loss
        for mask, estimate in estimates.items():
            is_cached = mask not in self._computed
            if mask in contest.accepted:
                evaluations[mask] = Evaluation(
                    Accepted(estimate.loss), is_cached, screened=replace(estimate, accepted=True)
                )
            else:
                evaluations[mask] = Evaluation(Dropped(estimate.loss), is_cached, screened=estimate)
        return {mask: evaluations[mask] for mask in masks}

    def measure(self, statistic: Statistic) -> npt.NDArray[np.float64]:
        """Measure a statistic of the dense model on all samples, calibration by calibration.

        Returns:
            The rows of the statistic, float64, of the shape that `Statistic` states.

        Raises:
            UserError: The statistic needs gradients that the objective does not have.
            EvaluationError: A shard failed for good, or the statistic is not finite.
        """
        check_statistic(statistic, [calibration.objective for calibration in self.calibrations])
        shards_by_calibration = shards_of(self.calibrations, statistic)
        values = self._complete((statistic,), shards_by_calibration)
        rows = np.concatenate(
            [values[name][statistic][shard] for name, shards in shards_by_calibration.items() for shard in shards]
        )
        rows = rows.reshape(-1, *statistic.shape(self.sites))
        if not np.isfinite(rows).all():
            raise EvaluationError(f"{statistic} is not finite; use model.dtype=bfloat16 or float32")
        return rows

    def _measure_ratios(self) -> None:
        """Measure the factors of all cuts on each calibration."""
        rows = self.measure(Statistic.NORM_RATIO)
        ends = np.cumsum([calibration.n_samples for calibration in self.calibrations])
        for calibration, ratios in zip(self.calibrations, np.split(rows, ends[:-1]), strict=True):
            self._ratios[calibration.fingerprint] = ratios.mean(axis=0)

    @property
    def pool(self) -> Pool:
        """The pool, opened on first use."""
        if self._pool is None:
            self._pool = self.make_pool()
        return self._pool

    @property
    def pool_stats(self) -> PoolStats:
        """How the replicas have been used; empty if none were needed."""
        return self._stats if self._pool is None else self._pool.stats

    def combine(self, losses: Sequence[float]) -> float:
        """Return the one loss that follows from a mask's losses on each calibration."""
        return self._weighting.combine(losses[: len(self._weighting.weights)], self._complete_references())

    def release_pool(self) -> None:
        """Close the pool if this evaluator owns it, to free its memory; a new pool is opened when it is needed."""
        if self._pool is not None and self.owns_pool:
            self._stats = self._pool.stats
            self._pool.close()
            self._pool = None

    def close(self) -> None:
        """Release all claims, and close the pool if this evaluator owns it. Closing twice is harmless."""
        try:
            self._claims.close()
        finally:
            self.release_pool()

    def _complete(self, subjects: Sequence[Subject], shards_by_calibration: Shards) -> RecordedValues:
        """Return the values of subjects on shards; compute those that the ledger lacks.

        Masks must be in mask order: a large round is cut, and neighbours share prefixes.
        """
        self._count_alone(subjects, shards_by_calibration)
        while missing := self._missing(subjects, shards_by_calibration):
            if claimed := self._claims.take(missing):
                self._run(claimed)
                self._claims.release()
            else:
                self._wait_for_others(missing)
        return self._values

    def _missing(self, subjects: Sequence[Subject], shards_by_calibration: Shards) -> list[Key]:
        """Read the values of subjects on shards that this round has not read; return the keys that the ledger lacks."""
        missing: list[Key] = []
        for calibration, shards in shards_by_calibration.items():
            values = self._values[calibration]
            if unread := _incomplete(subjects, shards, values):
                values.update(self.ledger.evaluations(calibration, unread))
            incomplete = _incomplete(unread, shards, values)
            missing += [
                Key(calibration, subject, shard)
                for shard in shards
                for subject in incomplete
                if shard not in values.get(subject, ())
            ]
        return missing

    def _wait_for_others(self, keys: Iterable[Key]) -> None:
        """Wait a moment for other processes, which compute these evaluations."""
        n_subjects = len({key.subject for key in keys})
        owners = ", ".join(self._claims.other_owners())
        self.on_progress(Progress(masks_elsewhere=n_subjects, elsewhere=owners))
        time.sleep(_POLL_S)

    def _count_alone(self, subjects: Sequence[Subject], shards_by_calibration: Shards) -> None:
        """Add to the meter the cost that these subjects would have with an empty ledger."""
        new_keys: list[Key] = []
        for calibration, shards in shards_by_calibration.items():
            for subject in subjects:
                n_requested = self._n_requested.get((calibration, subject), 0)
                new_keys += [Key(calibration, subject, shard) for shard in shards[n_requested:]]
                self._n_requested[calibration, subject] = max(n_requested, len(shards))
        layers, heads = planned_passes(units_of(new_keys, self.calibrations), self.calibrations, self.sites)
        self.meter.layer_forwards_alone += layers
        self.meter.head_forwards_alone += heads

    def _run(self, keys: Sequence[Key]) -> None:
        """Compute evaluations. The result of each unit is written to the ledger before the next result is awaited."""
        self._computed.update(key.subject for key in keys)
        units = [
            replace(unit, scales=self._scales(unit.calibration, unit.masks)) if isinstance(unit, MaskUnit) else unit
            for unit in units_of(keys, self.calibrations)
        ]
        pool = self.pool
        layers_planned, heads_planned = planned_passes(units, self.calibrations, self.sites)
        units_left = Counter(subject for unit in units for subject in unit.subjects)
        n_subjects = len(units_left)
        layers_done = heads_done = 0  # forwards of single tokens
        layers_before = self.meter.layer_forwards
        heads_before = self.meter.head_forwards

        def show_progress() -> None:
            layers, heads = as_passes(layers_done, heads_done, self.calibrations)
            self.meter.layer_forwards = layers_before + layers
            self.meter.head_forwards = heads_before + heads
            self.on_progress(
                Progress(
                    layer_forwards=layers,
                    layer_forwards_planned=max(layers, layers_planned),
                    head_forwards=heads,
                    head_forwards_planned=heads_planned,
                    masks_done=n_subjects - len(units_left),
                    masks_planned=n_subjects,
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
                layers_done += tokens * result.layer_forwards
                heads_done += tokens * result.head_forwards
                for subject in unit.subjects:
                    units_left[subject] -= 1
                    if not units_left[subject]:
                        del units_left[subject]
                self._count(result, tokens)
            show_progress()

    def _cut(self, unit: MaskUnit, replicas: float) -> tuple[Sequence[MaskUnit], Sequence[MaskUnit]]:
        """Cut a unit for several replicas, if its masks share prefixes and the cut saves more time than it costs."""
        objective = self._by_fingerprint[unit.calibration].objective
        if isinstance(objective, StateObjective) and (replicas > 1 or not objective.compares):
            return cut(unit, replicas, self.sites, self.head_cost * objective.heads)
        return [unit], []  # each part would run the dense model again, if the objective compares with it

    def _count(self, result: UnitResult, tokens: int) -> None:
        """Add to the meter the facts of a result that the plan does not contain."""
        self.meter.computing_s += result.seconds
        self.meter.tokens_written += sum(text.n_tokens for texts in result.texts.values() for text in texts)
        self.meter.layer_tokens += result.layer_tokens
        self.meter.layer_tokens_by_row += round(result.layer_forwards * tokens)
        if result.packed is not None:
            self.meter.packed = result.packed
        limits = [limit for limit in (self.meter.samples_at_once, result.samples_at_once) if limit is not None]
        self.meter.samples_at_once = min(limits, default=None)

    def _complete_references(self) -> dict[Mask, Sequence[float]]:
        """Return `_reference_losses`; compute those that the ledger lacks."""
        return self._reference_losses(self._complete(self._references, self._all_shards))

    def _reference_losses(self, values: RecordedValues) -> dict[Mask, Sequence[float]]:
        """Return the losses, on each calibration, of the masks that scale a weighted loss."""
        references: dict[Mask, Sequence[float]] = {mask: self._losses(mask, values) for mask in self._references}
        for mask, losses in references.items():
            for loss in losses:
                if not math.isfinite(loss):
                    raise EvaluationError(f"the weighted losses are scaled by the loss of {mask}, which is {loss}")
        return references

    def _losses(self, mask: Mask, values: RecordedValues) -> list[float]:
        """Return the loss of a mask on each calibration; a loss that is not finite means that it failed."""
        losses = []
        for calibration in self.calibrations:
            by_shard = values[calibration.fingerprint][mask]
            summed = total([by_shard[shard] for shard in range(calibration.n_shards)])
            losses.append(summed / calibration.divisor)
        return losses

    def _evaluation(
        self, mask: Mask, losses: Sequence[float], references: Mapping[Mask, Sequence[float]]
    ) -> Evaluation:
        weighted_losses = losses[: len(self._weighting.weights)]
        not_finite = [loss for loss in weighted_losses if not math.isfinite(loss)]
        outcome: Outcome
        if not_finite:
            outcome = Failed(f"the loss is {not_finite[0]}")
        else:
            outcome = Loss(self._weighting.combine(weighted_losses, references))
        parts = tuple(loss if math.isfinite(loss) else None for loss in losses)
        return Evaluation(outcome, mask not in self._computed, parts)


def _incomplete(
    subjects: Iterable[Subject], shards: Iterable[int], values: Mapping[Subject, Mapping[int, Values]]
) -> list[Subject]:
    """Return the subjects that lack the value of a shard."""
    needed = frozenset(shards)
    return [subject for subject in subjects if subject not in values or not values[subject].keys() >= needed]
