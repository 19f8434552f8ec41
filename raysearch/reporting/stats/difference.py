"""The difference between two searchers in a setting, and how much of it noise explains.

Three kinds of noise stand between two searchers, and each is a part of the error of their difference:

- **by draw**: with several draws of the calibration's samples, the differences within each draw are a sample, and their
  mean is tested by Student's paired t. This holds for other draws, and has the noise of the seeds in it where each
  draw has its own. Held-out losses of two draws are of the same samples in part, see `_held_out`.
- **by seed**: with one draw, or where draws share seeds, the spread over seeds on either side, as in Welch's test.
- **by item**: the choice of the samples, windows or items that a number was measured on. The same ones for both, so
  their differences count where they are kept; else the two errors are joined as if of different items, which is too
  wide rather than too narrow. With one draw of a calibration this holds for these masks, not for other samples.

Quantities that are compared by ratios enter by their logarithms. Degrees of freedom are by Welch and Satterthwaite.
That trusts a spread over few draws or seeds, which is small by chance now and then, as much as the many items beside
it. So noise is the cause unless it is rejected by the draws or seeds alone as well.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from raysearch.core.json import finite
from raysearch.reporting.stats.frame import CALIBRATION_LOSS, HELD_OUT_LOSS, Items, Quantity

LEVEL = 0.05
POWER = 0.8
_DUST = 1e-12  # relative; differences below it come from the order of additions
_NORMAL = 1e9  # degrees of freedom with which Student's t is the normal distribution


@dataclass(frozen=True)
class Difference:
    """The difference of two means.

    Args:
        value: The mean difference; of logarithms where the quantity is compared by ratios.
        n_draws: How many draws it is paired by.
        errors: Its standard errors with their degrees of freedom: by all noise, and by draws or seeds alone where there
            are several. The most cautious counts. None if noise is not known.
        exact_p: The p of the exact McNemar test, where two masks answered the same items right or wrong; else None.
    """

    value: float
    n_draws: int
    errors: Sequence[tuple[float, float]] = ()
    exact_p: float | None = None

    @property
    def p(self) -> float | None:
        """Two-sided, that there is no difference; None if the error is not known."""
        if self.value == 0:
            return 1.0
        if self.exact_p is not None or not self._known:
            return self.exact_p
        from scipy.special import stdtr

        return max(float(2 * stdtr(freedom, -abs(self.value) / error)) for error, freedom in self._known)

    def half_width(self) -> float | None:
        """Half of the interval of confidence 1 - `LEVEL`; None if the error is not known."""
        return self._quantiles(1 - LEVEL / 2)

    @property
    def detectable(self) -> float | None:
        """The difference that would be detected four times in five; None if the error is not known."""
        return self._quantiles(1 - LEVEL / 2, POWER)

    def equivalence_p(self, margin: float | None) -> float | None:
        """Return the larger p of two one-sided tests that it is within the margin; None without one, or without errors.

        That two sides are the same in all draws tells nothing of other ones.

        Source: Schuirmann 1987, J. Pharmacokinet. Biopharm. 15(6).
        """
        if margin is None:
            return None
        from scipy.special import stdtr

        room = margin - abs(self.value)
        noise = [(error, freedom) for error, freedom in self.errors if error > 0]
        return max((float(stdtr(freedom, -room / error)) for error, freedom in noise), default=None)

    def _quantiles(self, *levels: float) -> float | None:
        """The sum of some quantiles of Student's t, times the error; None if that is not known."""
        from scipy.special import stdtrit

        return max((float(stdtrit(freedom, levels).sum() * error) for error, freedom in self._known), default=None)

    @property
    def _known(self) -> list[tuple[float, float]]:
        """Those that tell: that no draw, seed or item differs from another, though the sides do, tells no noise."""
        return [one for one in self.errors if one[0] > 0 or not self.value]


class Side:
    """The searches of one searcher in a setting, or of several, as they enter a difference by one quantity.

    Each searcher and draw counts alike, however many seeds it has.
    """

    def __init__(self, cells: pd.DataFrame, quantity: Quantity) -> None:
        self._cells, self._quantity = cells, quantity
        self.stochastic = bool(cells["stochastic"].any())
        self.n = len(cells)

    def within(self, draws: Sequence[str]) -> Side:
        """Return the side with its searches of some draws alone."""
        if len(draws) == len(self.by_draw):
            return self  # with what it has computed
        return Side(self._cells[self._cells["draw"].isin(draws)], self._quantity)

    @cached_property
    def by_draw(self) -> Mapping[str, npt.NDArray[np.float64]]:
        """The values of each draw, one a seed; logarithms where the quantity is compared by ratios."""
        values, draws = self._quantity.of(self._cells).to_numpy(), self._cells["draw"].to_numpy()
        return {draw: values[draws == draw] for draw in dict.fromkeys(draws)}

    @cached_property
    def by_seed(self) -> npt.NDArray[np.float64]:
        """The mean over draws of each seed."""
        return self._quantity.of(self._cells).groupby(self._cells["seed"]).mean().to_numpy()

    @cached_property
    def shares_seeds(self) -> bool:
        """Whether draws have a seed in common, so that their spread lacks the noise of seeds; true of one draw."""
        seeds = self._cells.groupby("seed")["draw"].nunique()
        return len(self.by_draw) < 2 or bool((seeds > 1).any())

    @cached_property
    def elsewhere(self) -> pd.DataFrame | None:
        """Held-out losses, masks' draws down and samples' across, the mean over seeds; None if not kept."""
        losses = self._cells["held_out_by_draw"]
        if not losses.map(bool).all():
            return None
        return pd.DataFrame([*losses], [*self._cells["draw"]]).groupby(level=0).mean()

    @cached_property
    def score(self) -> float:
        """The mean over draws of the means over seeds."""
        return statistics.fmean(float(values.mean()) for values in self.by_draw.values())

    @cached_property
    def error(self) -> float | None:
        """The standard error by item, the mean over searches, which share the items."""
        errors = self._cells[self._quantity.error]
        if self._quantity.ratio:
            errors = errors / self._cells[self._quantity.key]
        return self._mean(errors)

    @cached_property
    def error_to_best(self) -> float | None:
        """The standard error of the difference to the lowest loss of the setting, on the same samples."""
        return self._mean(self._cells["error_to_best"]) if self._quantity == CALIBRATION_LOSS else None

    @cached_property
    def items(self) -> Items | None:
        """The contributions of items, the mean over searches; None if the same ones were not kept of all."""
        known = [items.get(self._quantity.key) for items in self._cells["items"]]
        if len({one and tuple(map(len, one)) for one in known} - {None}) != 1 or None in known:
            return None
        return [np.average(parts, axis=0, weights=self._weights) for parts in zip(*known, strict=True)]

    @cached_property
    def _weights(self) -> npt.NDArray[np.float64]:
        places = list(zip(self._cells["searcher"].cat.codes, self._cells["draw"], strict=True))
        sizes = Counter(places)
        return np.array([1 / sizes[place] for place in places])

    def _mean(self, errors: pd.Series) -> float | None:
        return finite(np.average(errors.to_numpy(float), weights=self._weights))


def difference(one: Side, other: Side, quantity: Quantity) -> Difference:
    """Return by how much one side is above the other on the draws that both have; without any, no error is known."""
    draws = [draw for draw in one.by_draw if draw in other.by_draw]
    if draws:
        one, other = one.within(draws), other.within(draws)
    unknown = Difference(one.score - other.score, len(draws))
    if not draws or not math.isfinite(unknown.value):  # nothing can be measured of a ruined model
        return unknown
    value = float(_above(one.score, other.score))
    if len(draws) > 1:
        gaps = _above(*(np.array([side.by_draw[draw].mean() for draw in draws]) for side in (one, other)))
        by_draw = of_mean(gaps)
        few = [_held_out(one, other, *by_draw) if quantity == HELD_OUT_LOSS else by_draw]
        items = [] if quantity in (CALIBRATION_LOSS, HELD_OUT_LOSS) else by_item(one, other)
    else:
        few, items = [], by_item(one, other)
    for side in (one, other):
        if side.shares_seeds and len(side.by_seed) > 1:
            few.append(of_mean(side.by_seed))
        elif side.shares_seeds and side.stochastic:  # nobody knows what another seed would have found
            return replace(unknown, value=value)
    parts = [*few, *items]
    exact_p = _mcnemar(one, other) if len(draws) == 1 and parts else None
    return Difference(value, len(draws), [total(known) for known in (parts, few) if known], exact_p)


def _above(one: Any, other: Any) -> Any:
    """Return by how much numbers, or arrays or tables of them, are above others; 0 where only rounding parts them."""
    gap = one - other
    return gap * (abs(gap) > _DUST * np.maximum(abs(one), abs(other)))


def of_mean(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return the variance of the mean of two or more numbers, and its degrees of freedom."""
    return float(values.var(ddof=1)) / len(values), len(values) - 1.0


def total(parts: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the root of a sum of variances, and its degrees of freedom by Welch and Satterthwaite."""
    variance, spread = sum(part for part, _ in parts), sum(part**2 / freedom for part, freedom in parts)
    return math.sqrt(variance), variance**2 / spread if spread > 0 else _NORMAL


def holm(p: Sequence[float | None]) -> list[float | None]:
    """Return p values corrected for their number by Holm's method; those that are not known stay so.

    As ``statsmodels.stats.multitest.multipletests``, which collects garbage each time: a third of a second.
    """
    known = np.sort([one for one in p if one is not None])
    steps = np.maximum.accumulate(known * np.arange(len(known), 0, -1))
    corrected = dict(zip(known.tolist(), np.minimum(steps, 1.0).tolist(), strict=True))
    return [None if one is None else corrected[one] for one in p]


def by_item(one: Side, other: Side) -> list[tuple[float, float]]:
    """The variance of the difference by the choice of items, with its degrees of freedom; nothing if not known."""
    if one.items is not None and other.items is not None and [*map(len, one.items)] == [*map(len, other.items)]:
        gaps = [_above(mine, theirs) for mine, theirs in zip(one.items, other.items, strict=True)]
        several = [gap for gap in gaps if len(gap) > 1]
        return [(len(gap) * float(gap.var(ddof=1)), len(gap) - 1.0) for gap in several]
    if one.error_to_best is not None and other.error_to_best is not None:
        # the triangle inequality; the best one's own is 0 for a single seed
        return [((one.error_to_best + other.error_to_best) ** 2, _NORMAL)]
    if one.error is None or other.error is None:
        return []
    return [(one.error**2 + other.error**2, _NORMAL)]


def _held_out(one: Side, other: Side, variance: float, freedom: float) -> tuple[float, float]:
    """The variance of a mean difference of held-out losses, with its degrees of freedom.

    Masks of two draws are evaluated on samples that they share, so the differences within draws are not independent,
    as `variance` and `freedom` would have it. Both draws are noise: that of the masks (rows) and that of the samples
    (columns). Together this is too wide rather than too narrow; so are records that kept the means alone, where all of
    it may come from the samples.
    """
    if one.elsewhere is None or other.elsewhere is None:
        return freedom**2 * variance, freedom
    gaps = _above(one.elsewhere, other.elsewhere)
    means = [gaps.mean(axis=axis).dropna() for axis in (0, 1)]
    return sum(float(of.var()) / len(of) for of in means), min(map(len, means)) - 1.0


def _mcnemar(one: Side, other: Side) -> float | None:
    """The exact McNemar test of two masks on the items of one task; None if there are more, or items are not 0 or 1.

    It is the sign test over the items that one of them alone has right.
    """
    if one.items is None or other.items is None or len(one.items) != 1 or one.n != 1 or other.n != 1:
        return None
    mine, theirs = one.items[0], other.items[0]
    if any(len(np.unique(np.abs(side[side != 0]).round(9))) > 1 for side in (mine, theirs)):
        return None
    return sign_p(int((mine > theirs).sum()), int((mine < theirs).sum()))


@cache
def sign_p(wins: int, losses: int) -> float:
    """Return the two-sided p of the exact sign test."""
    from scipy.stats import binomtest

    return float(binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0
