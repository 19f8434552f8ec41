"""Screening: decides which masks of a round are among the best, before all masks are evaluated to the end.

All masks of a round are evaluated on the first shards of the calibration, in an order that is fixed for the
calibration. Masks that are beyond doubt worse than the best are dropped, and the others are evaluated on the next
shards. If a searcher needs to know which masks are the best, but not their losses, masks that are beyond doubt among
the best are accepted and not evaluated further, except the mask that seems the very best.
Masks are compared on the same samples only, by the mean difference of their losses and Student's t with the correction
for a finite population: the question is the ranking on this calibration, not on the text that it was drawn from.

The probability of a wrong decision is bounded over the whole search: the error budget, 1 - confidence, is divided among
rounds, stages, the masks to keep, and their rivals (Bonferroni). A mask is dropped or accepted by mistake only if one
of the best masks loses to another mask, so both decisions share one budget. Early stages get more of it, since a mask
that is dropped early saves more work.

The cost of a site, such as a layer, hardly depends on the other sites that are removed. So a mask's loss is predicted
from three smaller masks: the mask without one of its sites, plus the mask without another, minus the mask without both.
This needs masks that earlier rounds have evaluated on more shards. Then only the error of the prediction is estimated
from the samples of this round (the difference estimator in two-phase sampling).

Source: racing, Maron and Moore, Hoeffding races, 1993. `raysearch.stats.shared_variance` has the statistics.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy  # `scipy.special` takes 0.2 s to import, so it is imported on first use

from raysearch.core.evaluations import RecordedValues
from raysearch.core.mask import Mask
from raysearch.core.screened import Screened
from raysearch.core.site import Sites
from raysearch.errors import UserError
from raysearch.searchers.base import Round
from raysearch.stats.paired import mcnemar_p
from raysearch.stats.ratio import ratio, residual_variance
from raysearch.stats.shared_variance import MIN_SAMPLES, SampledDifference, SharedVariance

if TYPE_CHECKING:
    from raysearch.calibration.calibration import Calibration

Array = npt.NDArray[np.float64]

#: The losses of a mask's samples on the shards evaluated so far, in screening order: an array for each calibration.
Samples = tuple[Array, ...]

_RIVALS = 8  # the number of leaders, in addition to the masks to keep, that a mask is compared with


class _Prediction(NamedTuple):
    """The predicted losses of a mask's samples.

    Args:
        stage: The last stage for which there are predictions; -1 if there is none.
        samples: The predicted losses up to that stage.
    """

    stage: int
    samples: Samples


_NOT_PREDICTED = _Prediction(-1, ())


@dataclass(frozen=True)
class Screening:
    """The options of screening.

    Args:
        confidence: The least probability that a search ends with the same mask as without screening, 0 … 1.
        stages: The shares of the shards after which masks may be dropped, ascending, each above 0 and below 1; if there
            are none, no mask is dropped.

    Raises:
        UserError: A value is out of range.
    """

    confidence: float = 0.99
    stages: Sequence[float] = (0.125, 0.1875, 0.25, 0.3125, 0.375, 0.4375, 0.5, 0.625, 0.75, 0.875)

    def __post_init__(self) -> None:
        if not 0 < self.confidence < 1:
            raise UserError(
                f"screening.confidence={self.confidence} is not a probability; use a number between 0 and 1"
            )
        if not all(0 < share < 1 for share in self.stages) or [*self.stages] != sorted(set(self.stages)):
            raise UserError(
                f"screening.stages={[*self.stages]} are not shares of the shards; use ascending numbers between 0 and "
                "1, such as [0.125,0.25,0.5], or [] to drop no mask"
            )


def shard_order(calibration: Calibration) -> tuple[int, ...]:
    """Return the order in which the shards of a calibration are screened; it is the same in every search.

    Neighbouring samples may be similar, and they are in neighbouring shards. So the first shards of the order are
    spread evenly over the calibration: the bits of a counter are reversed, and the result is rotated by an offset that
    depends on the fingerprint.
    """
    n_shards = calibration.n_shards
    bits = max(1, (n_shards - 1).bit_length())
    spread = [int(f"{index:0{bits}b}"[::-1], 2) for index in range(2**bits)]
    start = int(calibration.fingerprint[:8], 16)
    return tuple((shard + start) % n_shards for shard in spread if shard < n_shards)


class Screener:
    """The memory of a screened search: the losses of each mask on the shards that it has been evaluated on.

    Args:
        screening: The options.
        calibrations: The calibrations of the search.
        sites: The sites that masks remove. Masks that consist of other parts are not predicted.

    Attributes:
        stages: The shards after which masks may be dropped, by calibration; the last stage has all shards. Stages with
            too few samples to drop any mask are left out.
        failed: The masks with a loss that is not finite on a shard so far.
        factors: The factor of each calibration in the loss of a mask.
    """

    def __init__(self, screening: Screening, calibrations: Sequence[Calibration], sites: Sites) -> None:
        self.screening = screening
        self._sites = sites
        self._mask_of = functools.cache(sites.mask_of)
        self._calibrations = calibrations
        self.stages: list[Mapping[str, tuple[int, ...]]] = []
        self._sizes: list[list[int]] = []  # the number of samples of each stage, by calibration
        orders = [shard_order(calibration) for calibration in calibrations]
        cuts = [tuple(math.ceil(share * len(order)) for order in orders) for share in (*screening.stages, 1.0)]
        for cut in dict.fromkeys(cuts):
            parts = zip(calibrations, orders, cut, strict=True)
            stage = {calibration.fingerprint: order[:stop] for calibration, order, stop in parts}
            sizes = [
                sum(calibration.shards[shard].n_samples for shard in stage[calibration.fingerprint])
                for calibration in calibrations
            ]
            if min(sizes) >= MIN_SAMPLES or cut == cuts[-1]:
                self.stages.append(stage)
                self._sizes.append(sizes)
        self._weights = [
            np.concatenate([calibration.weights(shard) for shard in order], dtype=np.float64)
            for calibration, order in zip(calibrations, orders, strict=True)
        ]
        self._scales = [
            weights.sum() / calibration.divisor
            for calibration, weights in zip(calibrations, self._weights, strict=True)
        ]
        self._seen: dict[Mask, Samples] = {}
        self._stage: dict[Mask, int] = {}
        self.failed: set[Mask] = set()
        self._predictions: dict[Mask, _Prediction] = {}  # of the masks of the round
        self._budget_spent = 0.0
        self.factors: Sequence[float] = [1.0]

    def see(self, masks: Iterable[Mask], stage: int, values: RecordedValues) -> None:
        """Remember the losses of masks up to a stage.

        Args:
            masks: The masks.
            stage: The index of the stage in `stages`.
            values: The losses of the samples, by the fingerprint of the calibration, mask and shard.
        """
        names = [calibration.fingerprint for calibration in self._calibrations]
        for mask in masks:
            if self._stage.get(mask, -1) < stage:
                self._stage[mask] = stage
                self._seen[mask] = tuple(
                    np.concatenate([values[name][mask][shard] for shard in self.stages[stage][name]]) for name in names
                )
                if not all(np.isfinite(part).all() for part in self._seen[mask]):
                    self.failed.add(mask)

    def contest(self, proposed: Round) -> Contest | None:
        """Begin a round; return None if all of its masks must be evaluated in full.

        The dense model, and masks that have been evaluated in full, are never dropped. `beat` is ignored unless it has
        been evaluated in full. Rounds beyond the error budget are not screened.
        """
        contestants = [mask for mask in proposed.masks if mask]
        keep = proposed.keep
        beat = proposed.beat if proposed.beat is not None and self.is_complete(proposed.beat) else None
        if (keep is None and beat is None) or (keep or 0) >= len(contestants) or len(self.stages) == 1:
            return None
        self._budget_spent += 1 / proposed.n_rounds
        if self._budget_spent > 1 + 1e-9:
            return None
        predictions = {mask: self._predict(mask) for mask in contestants}
        self._predictions = {mask: prediction for mask, prediction in predictions.items() if prediction.stage >= 0}
        budget = (1 - self.screening.confidence) / proposed.n_rounds
        return Contest(self, replace(proposed, masks=contestants, beat=beat), budget)

    def is_complete(self, mask: Mask) -> bool:
        """Return whether a mask has been evaluated in full."""
        return self._stage.get(mask) == len(self.stages) - 1

    def levels(self, masks: Sequence[Mask], stage: int) -> dict[Mask, float]:
        """Return the losses of masks on the shards up to a stage.

        Args:
            masks: Masks that have been evaluated up to the stage.
            stage: The index of the stage in `stages`.

        Returns:
            The estimated loss of each mask.
        """
        return dict(zip(masks, self._estimate(self._losses(masks, stage))[0].tolist(), strict=True))

    def screened(self, masks: Sequence[Mask], best: Mask, loss: float) -> dict[Mask, Screened]:
        """Estimate the losses of masks that were dropped or accepted, from the loss of the round's best mask.

        Args:
            masks: The masks.
            best: The best mask of the round.
            loss: Its loss.

        Returns:
            The estimate of each mask with its bounds, and the share of the shards that it is based on.
        """
        estimates = {}
        n_shards = sum(calibration.n_shards for calibration in self._calibrations)
        for mask, difference in self.differences(masks, best).items():
            quantile = float(scipy.special.stdtrit(difference.degrees, (1 + self.screening.confidence) / 2))
            half_width = quantile * difference.error
            middle = loss + difference.mean
            share = sum(map(len, self.stages[self._stage[mask]].values())) / n_shards
            estimates[mask] = Screened(middle, middle - half_width, middle + half_width, share)
        return estimates

    def differences(self, masks: Sequence[Mask], rival: Mask) -> dict[Mask, SampledDifference]:
        """Compare masks with a rival, by the samples that both have been evaluated on, and by predictions.

        Args:
            masks: The masks.
            rival: The mask whose loss is subtracted.

        Returns:
            The difference of each mask from the rival, in the order of the masks.
        """
        by_stage: dict[int, list[Mask]] = {}
        for mask in masks:
            by_stage.setdefault(min(self._stage[mask], self._stage[rival]), []).append(mask)
        differences: dict[Mask, SampledDifference] = {}
        for stage, group in by_stage.items():
            differences |= self._compare(group, rival, stage)
        return {mask: differences[mask] for mask in masks}

    def _compare(self, masks: Sequence[Mask], rival: Mask, stage: int) -> dict[Mask, SampledDifference]:
        """Return the differences of masks from a rival, by the samples up to a stage."""
        pairs = zip(self._losses(masks, stage), self._losses([rival], stage), strict=True)
        losses = [mask_losses - rival_losses for mask_losses, rival_losses in pairs]
        mean, error = self._estimate(losses)
        sizes = np.abs(losses[0])
        is_counted = np.all((sizes == 0) | (sizes == 1), axis=1) & (len(losses) == 1)
        rival_prediction = self._predictions.get(rival, _NOT_PREDICTED)
        by_reach: dict[int, list[int]] = {}
        for row, mask in enumerate(masks):
            reach = min(rival_prediction.stage, self._predictions.get(mask, _NOT_PREDICTED).stage)
            if reach > stage and not is_counted[row]:
                by_reach.setdefault(reach, []).append(row)
        for reach, rows in by_reach.items():
            samples_of_rows = [self._predictions[masks[row]].samples for row in rows]
            predicted = [
                np.stack([samples[part][:size] for samples in samples_of_rows]) - rival_prediction.samples[part][:size]
                for part, size in enumerate(self._sizes[reach])
            ]
            predicted_mean, predicted_error = self._estimate([part[rows] for part in losses], predicted)
            for index, row in enumerate(rows):
                if predicted_error[index] < error[row]:
                    mean[row] = predicted_mean[index]
                    error[row] = predicted_error[index]
        degrees = max(1, min(self._sizes[stage]) - 1)
        differences = {}
        for row, mask in enumerate(masks):
            exact_p = _mcnemar(losses[0][row]) if is_counted[row] else None
            differences[mask] = SampledDifference(float(mean[row]), float(error[row]), degrees, exact_p)
        return differences

    def _losses(self, masks: Sequence[Mask], stage: int) -> list[Array]:
        """Return, by calibration, the losses of masks on the samples up to a stage, [k, n]."""
        return [
            np.stack([self._seen[mask][part][:size] for mask in masks]) for part, size in enumerate(self._sizes[stage])
        ]

    def _estimate(self, losses: Sequence[Array], predictions: Sequence[Array] | None = None) -> tuple[Array, Array]:
        """Estimate k differences over the whole calibration, and their standard errors, from n of its samples.

        `losses` are, by calibration, the differences of the samples, [k, n]; `predictions` their predictions on as many
        samples or more, [k, m].
        """
        mean = np.zeros(len(losses[0]))
        error = np.zeros(len(losses[0]))
        for part, seen in enumerate(losses):
            weights = self._weights[part]
            factor = self.factors[part] * self._scales[part]
            n = seen.shape[1]
            population_variance = residual_variance(seen, weights[:n])
            if predictions is None:
                mean_loss = ratio(seen, weights[:n])
                variance = population_variance * (1 / n - 1 / len(weights))
            else:
                predicted = predictions[part]
                m = predicted.shape[1]
                errors = seen - predicted[:, :n]
                mean_loss = ratio(errors, weights[:n]) + ratio(predicted, weights[:m])
                variance_of_errors = residual_variance(errors, weights[:n]) * (1 / n - 1 / m)
                variance = variance_of_errors + population_variance * (1 / m - 1 / len(weights))
            mean += factor * mean_loss
            # Calibrations may use the same texts, so their errors are added as if they were fully correlated.
            error += factor / weights[:n].mean() * np.sqrt(variance)
        return mean, error

    def _predict(self, mask: Mask) -> _Prediction:
        """Predict the losses of a mask's samples by a sum of smaller masks that have been evaluated furthest."""
        sites = self._sites.indices_of(mask)
        if sites is None or len(sites) < 2:
            return _NOT_PREDICTED
        sums = [
            {sites - [site]: 1, sites - [other_site]: 1, sites - [site, other_site]: -1}
            for site, other_site in combinations(sites, 2)
        ]
        sums.append({**{Mask.of(site): 1 for site in sites}, Mask(): 1 - len(sites)})
        sums_of_masks = [{self._mask_of(mask): factor for mask, factor in terms.items()} for terms in sums]
        best_sum = max(sums_of_masks, key=self.common_stage)
        stage = self.common_stage(best_sum)
        if stage < 0:
            return _NOT_PREDICTED
        samples = []
        for part, size in enumerate(self._sizes[stage]):
            terms = [factor * self._seen[smaller_mask][part][:size] for smaller_mask, factor in best_sum.items()]
            samples.append(np.sum(terms, axis=0))
        return _Prediction(stage, tuple(samples))

    def promise(self, mask: Mask) -> float | None:
        """Return the predicted loss of a mask of the round minus the dense model's; None if there is no prediction."""
        if mask not in self._predictions or not self.is_complete(Mask()):
            return None
        over_dense = [
            (predicted - dense[: len(predicted)])[None]
            for predicted, dense in zip(self._predictions[mask].samples, self._seen[Mask()], strict=True)
        ]
        return float(self._estimate(over_dense)[0][0])

    def common_stage(self, masks: Iterable[Mask]) -> int:
        """Return the last stage that all masks have been evaluated up to; -1 if there is none, or a mask failed."""
        return min((-1 if mask in self.failed else self._stage.get(mask, -1) for mask in masks), default=-1)


@dataclass
class Contest:
    """The masks of one round, and the decisions about them.

    Args:
        screener: The memory of the search.
        round: The round, without the dense model, and without a `beat` that has not been evaluated in full.
        budget: The error budget of the round, a probability.
        dropped: The masks that are not among the best.
        accepted: The masks that are among the best and whose exact losses are not needed; never the leader of a stage.
        winners: The masks in comparison with which other masks were dropped.
    """

    screener: Screener
    round: Round
    budget: float
    dropped: set[Mask] = field(default_factory=set)
    accepted: set[Mask] = field(default_factory=set)
    winners: set[Mask] = field(default_factory=set)

    def __post_init__(self) -> None:
        keep = self.round.keep
        self._favourites = [] if keep is None else self._find_favourites(keep)
        # A mask that must be kept could lose by mistake to `beat`, to any of its rivals, or to all favourites.
        kinds_of_mistakes = 0
        if self.round.beat is not None:
            kinds_of_mistakes += 1
        if keep is not None:
            kinds_of_mistakes += 1
        if self._favourites:
            kinds_of_mistakes += 1
        self._limit = self.budget / ((keep or len(self.round.masks)) * kinds_of_mistakes)
        shares = np.arange(1, len(self.screener.stages)) ** -0.5
        self._shares = shares / shares.sum()

    @property
    def is_settled(self) -> bool:
        """Whether no more masks can be dropped: only those to keep are left, and their exact losses are needed."""
        return self.round.exact and self.round.beat is None and len(self._undecided) <= (self.round.keep or 0)

    @property
    def _undecided(self) -> list[Mask]:
        decided = self.dropped | self.accepted | self.screener.failed
        return [mask for mask in self.round.masks if mask not in decided]

    def decide(self) -> None:
        """Drop or accept the masks for which it is beyond doubt, by the shards that all have been evaluated on."""
        screener = self.screener
        undecided = self._undecided
        in_question = {mask for mask in undecided if not screener.is_complete(mask)}
        if not in_question:
            return
        stage = screener.common_stage(in_question)
        limit = self._shares[stage] * self._limit
        levels = screener.levels(undecided, stage)
        undecided.sort(key=lambda mask: (levels[mask], mask))
        chances = functools.cache(functools.partial(self._chances, undecided))  # a rival may be a favourite, too

        def worse_than(rival: Mask, limit: float) -> set[Mask]:
            return {mask for mask, chance in chances(rival).items() if chance < limit}

        dropped: set[Mask] = set()
        keep = 0 if self.round.keep is None else self.round.keep - len(self.accepted)
        if keep:
            below = {mask for mask in undecided[keep:] if mask in in_question}
            rivals = undecided[: keep + _RIVALS]
            worse_by_rival = {rival: worse_than(rival, limit / len(self.round.masks)) for rival in rivals}
            for mask in below:
                winners = {rival for rival, worse in worse_by_rival.items() if mask in worse}
                if len(winners) >= keep:
                    dropped.add(mask)
                    self.winners |= winners
            if not self.round.exact:
                for rival in rivals[1:]:  # the first one needs its exact loss
                    if rival in in_question and len(undecided) - len(worse_by_rival[rival]) <= keep:
                        self.accepted.add(rival)
            if self._favourites and self.dropped.isdisjoint(self._favourites):
                worse_than_all = below.intersection(*(worse_than(favourite, limit) for favourite in self._favourites))
                if worse_than_all:
                    dropped |= worse_than_all
                    self.winners |= {*self._favourites}
        if self.round.beat is not None:
            worse_than_beat = worse_than(self.round.beat, limit) & in_question
            if worse_than_beat:
                dropped |= worse_than_beat
                self.winners.add(self.round.beat)
        self.dropped |= dropped

    def _chances(self, masks: Sequence[Mask], rival: Mask) -> dict[Mask, float]:
        """Return, for masks that seem worse than a rival, the probability that they are not; `masks` are best first."""
        differences = self.screener.differences([mask for mask in masks if mask != rival], rival)
        better_half = [*differences.values()][: len(masks) // 2]
        shared = SharedVariance.of(better_half)
        return {mask: difference.probability(shared) for mask, difference in differences.items() if difference.mean > 0}

    def _find_favourites(self, count: int) -> list[Mask]:
        """Return the masks with the lowest predicted losses, best first; none if any mask has no prediction."""
        promises: dict[Mask, float] = {}
        for mask in self.round.masks:
            promise = self.screener.promise(mask)
            if promise is None:
                return []
            promises[mask] = promise
        return sorted(promises, key=lambda mask: (promises[mask], mask))[:count]


def _mcnemar(losses: Array) -> float:
    """Return the p of McNemar's test that a mask is worse; its losses minus those of its rival are -1, 0 or 1."""
    return mcnemar_p(int((losses > 0).sum()), int((losses < 0).sum()), "greater")
