"""Screening: decide which masks of a round are among the best before all are evaluated to the end.

All masks of a round are evaluated on the first shards of the calibration, in one order that is fixed for the
calibration; those that are beyond doubt worse than the best go no further, and the others go on to the next shards.
Where a searcher needs to know which masks are the best, and not their losses, those that are beyond doubt among them
go no further either, but for the one that seems the very best.
Masks are compared on the same samples alone, by the mean difference of their losses and Student's t with the correction
for a finite population: the question is the ranking on this calibration, not on the text that it was drawn from.

The probability of a wrong decision is bounded over the whole search: the error budget, 1 - confidence, is shared by
rounds, stages, the masks that are kept, and their rivals (Bonferroni). A mask is dropped or accepted by mistake only if
one of the best loses to one of the others, so both share one budget. Early stages get more of it, since a mask that is
dropped early saves more.

What a layer costs hardly depends on the others that are gone. So a mask's loss is predicted by that with one of two
layers and that with the other, less that with both, if earlier rounds have evaluated those further; and only the error
of the prediction is estimated from the few samples at hand (the difference estimator in two-phase sampling).

Source: Student's t of paired differences, Cochran, Sampling Techniques, 1977, equations 2.20 (finite population), 6.13
(ratio) and 12.51 (two phases); racing, Maron and Moore, Hoeffding races, 1993.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import scipy  # its parts are imported when they are first used: `scipy.special` takes a fifth of a second

from raysearch.core.mask import Mask
from raysearch.core.screened import Screened
from raysearch.errors import UserError
from raysearch.searchers.base import Round

if TYPE_CHECKING:
    from raysearch.calibration.calibration import Calibration

Array = npt.NDArray[np.float64]

#: The samples of a mask on the shards that it has seen, in screening order: an array for each calibration.
Samples = tuple[Array, ...]

_FEWEST = 8  # samples of a difference whose spread is believed
_FEWEST_VARIANCES = 5  # from which a common spread is estimated
_MOST_WORTH = 20.0  # degrees of freedom of a common spread
_RIVALS = 8  # beside those that are kept: the leaders that a mask is compared with
_NOT_PREDICTED: tuple[int, Samples] = (-1, ())


@dataclass(frozen=True)
class Screening:
    """How masks are screened.

    Args:
        confidence: The least probability that a search ends with the mask that it would find unscreened, 0 … 1.
        stages: The shares of the shards after which masks may be dropped, ascending, each above 0 and below 1; none
            drops nothing.

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


@dataclass(frozen=True)
class Difference:
    """The estimated difference of two masks' losses: first minus second."""

    mean: float
    error: float  #: its standard error
    degrees: int  #: degrees of freedom of that, at least 1
    exact: float | None = None  #: `probability` where it can be counted

    def probability(self, spread: Spread) -> float:
        """Return the probability of such a difference, or a larger one, if the first mask were not worse."""
        if self.exact is not None:
            return self.exact
        if self.degrees < _FEWEST - 1 or not self.error > 0:
            return 1.0
        worth = min(spread.degrees, self.degrees)  # not more than its own: the differences are of the same samples
        moderated = (worth * spread.variance + self.degrees * self.error**2) / (worth + self.degrees)
        error = math.sqrt(max(self.error**2, moderated))
        return float(scipy.special.stdtr(self.degrees + worth, -self.mean / error))


@dataclass(frozen=True)
class Spread:
    """The variance that differences from one mask have in common, and its worth in degrees of freedom.

    Masks that are about as good as each other differ from the best with much the same variance; so a few samples of
    each tell that variance well together. Source: Smyth 2004, Linear models and empirical Bayes methods for assessing
    differential expression, section 6.2: the moments of the logarithms of sample variances.
    """

    variance: float = 0.0
    degrees: float = 0.0

    @classmethod
    def of(cls, differences: Sequence[Difference]) -> Spread:
        """Estimate it; without worth if there are too few differences, or if they have too little in common."""
        known = [one for one in differences if one.exact is None and one.degrees >= _FEWEST - 1 and one.error > 0]
        if len(known) < _FEWEST_VARIANCES:
            return cls()
        degrees = np.array([one.degrees for one in known])
        logs = 2 * np.log([one.error for one in known]) - scipy.special.digamma(degrees / 2) + np.log(degrees / 2)
        excess = float(logs.var(ddof=1) - scipy.special.zeta(2, degrees / 2).mean())
        worth = min(_MOST_WORTH, 2 * _inverse_trigamma(excess)) if excess > 0 else _MOST_WORTH
        return cls(math.exp(logs.mean() + scipy.special.digamma(worth / 2) - math.log(worth / 2)), worth)


def shard_order(calibration: Calibration) -> tuple[int, ...]:
    """Return the order in which a calibration's shards are screened, the same in every search.

    Neighbours among the samples are in neighbouring shards, so the first ones are spread evenly: the bits of a counter,
    read from the end, and turned around the circle of shards by an angle that depends on the fingerprint.
    """
    n_shards = calibration.n_shards
    bits = max(1, (n_shards - 1).bit_length())
    spread = [int(f"{index:0{bits}b}"[::-1], 2) for index in range(2**bits)]
    start = int(calibration.fingerprint[:8], 16)
    return tuple((shard + start) % n_shards for shard in spread if shard < n_shards)


class Screener:
    """The memory of a screened search: what each mask has lost on the shards that it has seen.

    Attributes:
        stages: The shards after which masks may be dropped, by calibration; the last are all of them. Stages with too
            few samples to drop any mask are left out.
        failed: The masks whose losses are not finite on what they have seen.
    """

    def __init__(self, screening: Screening, calibrations: Sequence[Calibration]) -> None:
        self.screening = screening
        self._calibrations = calibrations
        self.stages: list[Mapping[str, tuple[int, ...]]] = []
        self._sizes: list[list[int]] = []  # samples of each stage, by calibration
        orders = [shard_order(one) for one in calibrations]
        cuts = [tuple(math.ceil(share * len(order)) for order in orders) for share in (*screening.stages, 1.0)]
        for cut in dict.fromkeys(cuts):
            parts = zip(calibrations, orders, cut, strict=True)
            stage = {one.fingerprint: order[:stop] for one, order, stop in parts}
            sizes = [sum(one.shards[shard].n_samples for shard in stage[one.fingerprint]) for one in calibrations]
            if min(sizes) >= _FEWEST or cut == cuts[-1]:
                self.stages.append(stage)
                self._sizes.append(sizes)
        self._weights = [
            np.concatenate([one.weights(shard) for shard in order], dtype=np.float64)
            for one, order in zip(calibrations, orders, strict=True)
        ]
        self._scales = [weights.sum() / one.divisor for one, weights in zip(calibrations, self._weights, strict=True)]
        self._seen: dict[Mask, Samples] = {}
        self._stage: dict[Mask, int] = {}
        self.failed: set[Mask] = set()
        self._predictions: dict[Mask, tuple[int, Samples]] = {}  # of the round's masks, and how far they reach
        self._budget_spent = 0.0
        self.factors: Sequence[float] = [1.0]

    def see(self, masks: Iterable[Mask], stage: int, known: Mapping[str, Mapping[Mask, Mapping[int, Array]]]) -> None:
        """Remember what masks have lost up to a stage."""
        names = [one.fingerprint for one in self._calibrations]
        for mask in masks:
            if self._stage.get(mask, -1) < stage:
                self._stage[mask] = stage
                self._seen[mask] = tuple(
                    np.concatenate([known[name][mask][shard] for shard in self.stages[stage][name]]) for name in names
                )
                if not all(np.isfinite(part).all() for part in self._seen[mask]):
                    self.failed.add(mask)

    def contest(self, proposed: Round) -> Contest | None:
        """Begin a round; None if it must be evaluated in full.

        The dense model, and what has been evaluated in full, is never dropped. `beat` is ignored unless it has been
        evaluated in full. Rounds beyond the error budget are not screened.
        """
        contestants = [mask for mask in proposed.masks if mask]
        keep, beat = proposed.keep, proposed.beat if proposed.beat is not None and self.knows(proposed.beat) else None
        if (keep is None and beat is None) or (keep or 0) >= len(contestants) or len(self.stages) == 1:
            return None
        self._budget_spent += 1 / proposed.n_rounds
        if self._budget_spent > 1 + 1e-9:
            return None
        predictions = {mask: self._predict(mask) for mask in contestants if len(mask) > 1}
        self._predictions = {mask: found for mask, found in predictions.items() if found[0] >= 0}
        budget = (1 - self.screening.confidence) / proposed.n_rounds
        return Contest(self, replace(proposed, masks=contestants, beat=beat), budget)

    def knows(self, mask: Mask) -> bool:
        """Return whether a mask has been evaluated in full."""
        return self._stage.get(mask) == len(self.stages) - 1

    def levels(self, masks: Sequence[Mask], stage: int) -> dict[Mask, float]:
        """Return the losses of masks on the shards up to a stage."""
        return dict(zip(masks, self._estimate(self._losses(masks, stage))[0].tolist(), strict=True))

    def screened(self, masks: Sequence[Mask], best: Mask, loss: float) -> dict[Mask, Screened]:
        """Estimate the losses of masks that were dropped or accepted by that of the round's best."""
        found, n_shards = {}, sum(one.n_shards for one in self._calibrations)
        for mask, one in self.differences(masks, best).items():
            half = float(scipy.special.stdtrit(one.degrees, (1 + self.screening.confidence) / 2)) * one.error
            middle = loss + one.mean
            share = sum(map(len, self.stages[self._stage[mask]].values())) / n_shards
            found[mask] = Screened(middle, middle - half, middle + half, share)
        return found

    def differences(self, masks: Sequence[Mask], other: Mask) -> dict[Mask, Difference]:
        """Compare masks with another one by the samples that both have seen, and by what is known of their relatives.

        The result has the order of the masks.
        """
        by_stage: dict[int, list[Mask]] = {}
        for mask in masks:
            by_stage.setdefault(min(self._stage[mask], self._stage[other]), []).append(mask)
        found: dict[Mask, Difference] = {}
        for stage, group in by_stage.items():
            found |= self._compare(group, other, stage)
        return {mask: found[mask] for mask in masks}

    def _compare(self, masks: Sequence[Mask], other: Mask, stage: int) -> dict[Mask, Difference]:
        """Return the differences of masks from another one, by the samples up to a stage."""
        pairs = zip(self._losses(masks, stage), self._losses([other], stage), strict=True)
        losses = [own - others for own, others in pairs]
        mean, error = self._estimate(losses)
        whole = np.abs(losses[0])
        counted = np.all((whole == 0) | (whole == 1), axis=1) & (len(losses) == 1)
        furthest, theirs = self._predictions.get(other, _NOT_PREDICTED)
        by_reach: dict[int, list[int]] = {}
        for row, mask in enumerate(masks):
            reach = min(furthest, self._predictions.get(mask, _NOT_PREDICTED)[0])
            if reach > stage and not counted[row]:
                by_reach.setdefault(reach, []).append(row)
        for reach, rows in by_reach.items():
            ours = [self._predictions[masks[row]][1] for row in rows]
            predicted = [
                np.stack([one[part][:size] for one in ours]) - theirs[part][:size]
                for part, size in enumerate(self._sizes[reach])
            ]
            means, errors = self._estimate([part[rows] for part in losses], predicted)
            for row, *found in zip(rows, means, errors, strict=True):
                mean[row], error[row] = min((mean[row], error[row]), found, key=lambda pair: pair[1])
        degrees = max(1, min(self._sizes[stage]) - 1)
        exact = [_mcnemar(row) if is_counted else None for row, is_counted in zip(losses[0], counted, strict=True)]
        return {
            mask: Difference(float(mean[row]), float(error[row]), degrees, exact[row]) for row, mask in enumerate(masks)
        }

    def _losses(self, masks: Sequence[Mask], stage: int) -> list[Array]:
        """Return by calibration what masks have lost on the samples up to a stage, [k, n]."""
        return [
            np.stack([self._seen[mask][part][:size] for mask in masks]) for part, size in enumerate(self._sizes[stage])
        ]

    def _estimate(self, losses: Sequence[Array], predictions: Sequence[Array] | None = None) -> tuple[Array, Array]:
        """Estimate differences over the whole calibration.

        `losses` are by calibration the differences of the samples seen, [k, n]; `predictions` those of related masks
        on as many samples or more, [k, m]. The k differences are returned with their standard errors.
        """
        mean, error = np.zeros((2, len(losses[0])))
        for part, (factor, scale, weights, seen) in enumerate(
            zip(self.factors, self._scales, self._weights, losses, strict=True)
        ):
            n, m, total = seen.shape[1], seen.shape[1], len(weights)
            ratio, spread = _ratio(seen, weights[:n]), 0.0
            if predictions is not None:
                predicted = predictions[part]
                m, errors = predicted.shape[1], seen - predicted[:, :n]
                ratio = _ratio(errors, weights[:n]) + _ratio(predicted, weights[:m])
                spread = _variance(errors, weights[:n]) * (1 / n - 1 / m)
            mean += factor * scale * ratio
            spread = spread + _variance(seen, weights[:n]) * (1 / m - 1 / total)
            # Parts may be on the same texts, so their errors add up as if they were wholly correlated.
            error += factor * scale / weights[:n].mean() * np.sqrt(spread)
        return mean, error

    def _predict(self, mask: Mask) -> tuple[int, Samples]:
        """Return the last stage up to which a mask is predicted by its parts, -1 for none, and what it loses there."""
        ways = [{mask - [one]: 1, mask - [other]: 1, mask - [one, other]: -1} for one, other in combinations(mask, 2)]
        ways.append({**{Mask.of(layer): 1 for layer in mask}, Mask(): 1 - len(mask)})
        way = max(ways, key=self.common_stage)
        reach = self.common_stage(way)
        sizes = self._sizes[reach] if reach >= 0 else ()
        return reach, tuple(
            np.sum([sign * self._seen[of][part][:size] for of, sign in way.items()], axis=0)
            for part, size in enumerate(sizes)
        )

    def promise(self, mask: Mask) -> float | None:
        """Return the predicted loss over the dense model's of a mask of the round; None without a prediction."""
        if mask not in self._predictions or not self.knows(Mask()):
            return None
        over_dense = [
            (predicted - dense[: len(predicted)])[None]
            for predicted, dense in zip(self._predictions[mask][1], self._seen[Mask()], strict=True)
        ]
        return float(self._estimate(over_dense)[0][0])

    def common_stage(self, masks: Iterable[Mask]) -> int:
        """Return the last stage that all of some masks have seen, none of them failed; -1 if there is none."""
        return min((-1 if mask in self.failed else self._stage.get(mask, -1) for mask in masks), default=-1)


@dataclass
class Contest:
    """The masks of one round, and those that need no further evaluation."""

    screener: Screener
    round: Round  #: without the dense model, and without a `beat` that has not been evaluated in full
    budget: float  #: of errors
    dropped: set[Mask] = field(default_factory=set)  #: those that are not among the best
    #: Those that are among the best and need not be known exactly; never the leader of a stage.
    accepted: set[Mask] = field(default_factory=set)
    winners: set[Mask] = field(default_factory=set)  #: those for which others were dropped

    def __post_init__(self) -> None:
        keep, beat = self.round.keep, self.round.beat
        self._favourites = [] if keep is None else self._find_favourites(keep)
        # Any mask that must be kept could lose by mistake to `beat`, to all favourites, or to any one of the others.
        ways = [beat is not None, keep is not None, bool(self._favourites)]
        self._limit = self.budget / ((keep or len(self.round.masks)) * sum(ways))
        shares = np.arange(1, len(self.screener.stages)) ** -0.5
        self._shares = shares / shares.sum()

    @property
    def is_settled(self) -> bool:
        """Whether no other mask can be dropped: no more are left than are kept, whose losses are needed."""
        return self.round.exact and self.round.beat is None and len(self._undecided) <= (self.round.keep or 0)

    @property
    def _undecided(self) -> list[Mask]:
        decided = self.dropped | self.accepted | self.screener.failed
        return [mask for mask in self.round.masks if mask not in decided]

    def decide(self) -> None:
        """Drop or accept the masks of which it is beyond doubt, by the shards that all of them have seen."""
        screener, beat, left = self.screener, self.round.beat, self._undecided
        in_question = {mask for mask in left if not screener.knows(mask)}
        if not in_question:
            return
        stage = screener.common_stage(in_question)
        keep = 0 if self.round.keep is None else self.round.keep - len(self.accepted)
        limit = self._shares[stage] * self._limit
        levels = screener.levels(left, stage)
        left.sort(key=lambda mask: (levels[mask], mask))
        chances = functools.cache(functools.partial(self._chances, left))  # a rival may be a favourite, too

        def worse_than(rival: Mask, limit: float) -> set[Mask]:
            return {mask for mask, chance in chances(rival).items() if chance < limit}

        below = {mask for mask in left[keep:] if mask in in_question} if keep else set()
        won_by: dict[Mask, set[Mask]] = {mask: set() for mask in below}
        for rank, rival in enumerate(left[: keep + _RIVALS] if keep else []):
            worse = worse_than(rival, limit / len(self.round.masks))
            for mask in worse & below:
                won_by[mask].add(rival)
            if not self.round.exact and rank and rival in in_question and len(left) - len(worse) <= keep:
                self.accepted.add(rival)
        beaten = {mask for mask, winners in won_by.items() if len(winners) >= keep}
        self.winners |= set().union(*(won_by[mask] for mask in beaten))
        if self._favourites and self.dropped.isdisjoint(self._favourites):
            to_all = below.intersection(*(worse_than(rival, limit) for rival in self._favourites))
            self.winners |= {*self._favourites} if to_all else set()
            beaten |= to_all
        if beat is not None and (losers := worse_than(beat, limit) & in_question):
            beaten |= losers
            self.winners.add(beat)
        self.dropped |= beaten

    def _chances(self, masks: Sequence[Mask], rival: Mask) -> dict[Mask, float]:
        """Return by which probability masks, given best first, seem worse than a rival and are not."""
        differences = self.screener.differences([mask for mask in masks if mask != rival], rival)
        spread = Spread.of([*differences.values()][: len(masks) // 2])
        return {mask: one.probability(spread) for mask, one in differences.items() if one.mean > 0}

    def _find_favourites(self, count: int) -> list[Mask]:
        """Return the masks that earlier rounds promise most, best first; none if those do not tell of all masks."""
        promises = {mask: self.screener.promise(mask) for mask in self.round.masks}
        told = {mask: loss for mask, loss in promises.items() if loss is not None}
        return sorted(told, key=lambda mask: (told[mask], mask))[:count] if len(told) == len(promises) else []


def _inverse_trigamma(value: float) -> float:
    """Solve trigamma(x) = zeta(2, x) = value, above 0, by Newton's method (Smyth 2004, appendix)."""
    found = 0.5 + 1 / value
    for _ in range(20):
        now, before = float(scipy.special.zeta(2, found)), found
        found -= now * (1 - now / value) / (2 * float(scipy.special.zeta(3, found)))
        if found == before:
            break
    return found


def _ratio(values: Array, weights: Array) -> Array:
    """Return the mean of values [k, n] by weight [n], for each of k."""
    return np.asarray(values.sum(axis=1) / weights.sum())


def _variance(values: Array, weights: Array) -> Array:
    """Return the variance of the residuals of a ratio, for each of k; 0 for a single sample."""
    residuals = values - _ratio(values, weights)[:, None] * weights
    return np.asarray(residuals.var(axis=1, ddof=1)) if values.shape[1] > 1 else np.zeros(len(values))


def _mcnemar(losses: Array) -> float:
    """Return the probability of such right and wrong answers by an exact test of those that differ."""
    lost, differ = int((losses > 0).sum()), int(np.count_nonzero(losses))
    return float(scipy.special.bdtrc(lost - 1, differ, 0.5)) if lost else 1.0
