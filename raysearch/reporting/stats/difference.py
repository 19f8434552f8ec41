"""The difference between two searchers in a setting, and how much of it noise explains.

The error of the difference has up to three parts, one for each kind of noise:

- **by draw**: with several draws of the calibration's samples, the differences within each draw are a sample, and their
  mean is tested by Student's paired t. The result holds for other draws. It includes the noise of the seeds where each
  draw has its own seeds. Held-out losses of two draws share a part of their samples, see `_held_out`.
- **by seed**: with one draw, or where draws share seeds, the spread over seeds of each side, as in Welch's test.
- **by item**: the choice of the samples, windows or items on which a number was measured. Both sides have the same
  items, so the paired differences are used where they are kept. Else the two errors are joined as if the items were
  different, which is too wide rather than too narrow. With one draw of a calibration the result holds for these masks,
  not for other samples.

Quantities that are compared by ratios are used by their logarithms. Degrees of freedom are by Welch and Satterthwaite.
That formula trusts a spread over few draws or seeds, which may be small by chance, as much as the spread over many
items. So a difference is significant only if the draws or seeds alone reject noise, too.
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
        n_draws: The number of draws by which it is paired.
        errors: Its standard errors with their degrees of freedom: by all noise, and by draws or seeds alone where there
            are several. The most cautious one counts. Empty if the noise is not known.
        exact_p: The p of the exact McNemar test, where two masks answered the same items right or wrong; else None.
    """

    value: float
    n_draws: int
    errors: Sequence[tuple[float, float]] = ()
    exact_p: float | None = None

    @property
    def p(self) -> float | None:
        """The two-sided p of the test that there is no difference; None if the error is not known."""
        if self.value == 0:
            return 1.0
        if self.exact_p is not None or not self._usable_errors:
            return self.exact_p
        from scipy.special import stdtr

        return max(float(2 * stdtr(freedom, -abs(self.value) / error)) for error, freedom in self._usable_errors)

    def half_width(self) -> float | None:
        """Return half of the width of the confidence interval of 1 - `LEVEL`; None if the error is not known."""
        return self._quantiles(1 - LEVEL / 2)

    @property
    def detectable(self) -> float | None:
        """The difference that would be detected four times in five; None if the error is not known."""
        return self._quantiles(1 - LEVEL / 2, POWER)

    def equivalence_p(self, margin: float | None) -> float | None:
        """Return the larger p of two one-sided tests that the difference is within a margin.

        Two sides that are the same in all draws may differ in other draws, so an error of 0 is not used.

        Args:
            margin: The difference below which two sides are as good as each other; None for no margin.

        Returns:
            The p; None without a margin, or without an error above 0.

        Source: Schuirmann 1987, J. Pharmacokinet. Biopharm. 15(6).
        """
        if margin is None:
            return None
        from scipy.special import stdtr

        room = margin - abs(self.value)
        noise = [(error, freedom) for error, freedom in self.errors if error > 0]
        return max((float(stdtr(freedom, -room / error)) for error, freedom in noise), default=None)

    def _quantiles(self, *levels: float) -> float | None:
        """Return the sum of quantiles of Student's t, times the error; None if the error is not known."""
        from scipy.special import stdtrit

        return max(
            (float(stdtrit(freedom, levels).sum() * error) for error, freedom in self._usable_errors), default=None
        )

    @property
    def _usable_errors(self) -> list[tuple[float, float]]:
        """The errors to test by. An error of 0 next to a difference that is not 0 is no evidence of no noise."""
        return [(error, freedom) for error, freedom in self.errors if error > 0 or not self.value]


class Side:
    """The searches of one side of a difference: of one searcher in a setting, or of several searchers.

    Each searcher and draw has the same weight, however many seeds it has.

    Args:
        cells: The searches, a row each, see `cells_frame`.
        quantity: The quantity by which the side is compared.
    """

    def __init__(self, cells: pd.DataFrame, quantity: Quantity) -> None:
        self._cells = cells
        self._quantity = quantity
        self.stochastic = bool(cells["stochastic"].any())
        self.n = len(cells)

    def within(self, draws: Sequence[str]) -> Side:
        """Return the side with only its searches of these draws."""
        if len(draws) == len(self.by_draw):
            return self  # which keeps its cached values
        return Side(self._cells[self._cells["draw"].isin(draws)], self._quantity)

    @cached_property
    def by_draw(self) -> Mapping[str, npt.NDArray[np.float64]]:
        """The values of each draw, one per seed; logarithms where the quantity is compared by ratios."""
        values = self._quantity.values_of(self._cells).to_numpy()
        draws = self._cells["draw"].to_numpy()
        return {draw: values[draws == draw] for draw in dict.fromkeys(draws)}

    @cached_property
    def by_seed(self) -> npt.NDArray[np.float64]:
        """The mean over draws of each seed."""
        return self._quantity.values_of(self._cells).groupby(self._cells["seed"]).mean().to_numpy()

    @cached_property
    def shares_seeds(self) -> bool:
        """Whether draws have a seed in common, so that their spread lacks the noise of seeds; true for one draw."""
        seeds = self._cells.groupby("seed")["draw"].nunique()
        return len(self.by_draw) < 2 or bool((seeds > 1).any())

    @cached_property
    def on_other_draws(self) -> pd.DataFrame | None:
        """Held-out losses, [draws of masks, draws of samples], the mean over seeds; None if they were not kept."""
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
        """The standard error by item, the mean over searches, since these share the items."""
        errors = self._cells[self._quantity.error]
        if self._quantity.ratio:
            errors = errors / self._cells[self._quantity.key]
        return self._mean(errors)

    @cached_property
    def error_to_best(self) -> float | None:
        """The standard error of the difference from the lowest loss of the setting, on the same samples."""
        return self._mean(self._cells["error_to_best"]) if self._quantity == CALIBRATION_LOSS else None

    @cached_property
    def items(self) -> Items | None:
        """The contributions of items, the mean over searches; None if the searches did not keep the same items."""
        by_search = [items.get(self._quantity.key) for items in self._cells["items"]]
        sizes = {None if items is None else _sizes(items) for items in by_search}
        if None in sizes or len(sizes) != 1:
            return None
        return [np.average(parts, axis=0, weights=self._weights) for parts in zip(*by_search, strict=True)]

    @cached_property
    def _weights(self) -> npt.NDArray[np.float64]:
        places = list(zip(self._cells["searcher"].cat.codes, self._cells["draw"], strict=True))
        sizes = Counter(places)
        return np.array([1 / sizes[place] for place in places])

    def _mean(self, errors: pd.Series) -> float | None:
        return finite(np.average(errors.to_numpy(float), weights=self._weights))


def difference(first: Side, second: Side, quantity: Quantity) -> Difference:
    """Return by how much the first side is above the second, on the draws that both have.

    Where they share no draw, the difference is that of all their searches, and it has no error.

    Args:
        first: The searches of one searcher.
        second: The searches of another one.
        quantity: The quantity by which both sides were made.
    """
    draws = [draw for draw in first.by_draw if draw in second.by_draw]
    if draws:
        first = first.within(draws)
        second = second.within(draws)
    without_error = Difference(first.score - second.score, len(draws))
    if not draws or not math.isfinite(without_error.value):  # nothing can be measured of a ruined model
        return without_error
    value = float(_above(first.score, second.score))
    if len(draws) > 1:
        gaps = _above(*(np.array([side.by_draw[draw].mean() for draw in draws]) for side in (first, second)))
        by_draw = of_mean(gaps)
        few = [_held_out(first, second, *by_draw) if quantity == HELD_OUT_LOSS else by_draw]
        items = [] if quantity in (CALIBRATION_LOSS, HELD_OUT_LOSS) else by_item(first, second)
    else:
        few = []
        items = by_item(first, second)
    for side in (first, second):
        if side.shares_seeds and len(side.by_seed) > 1:
            few.append(of_mean(side.by_seed))
        elif side.shares_seeds and side.stochastic:  # the result of another seed is unknown
            return replace(without_error, value=value)
    parts = [*few, *items]
    exact_p = _mcnemar(first, second) if len(draws) == 1 and parts else None
    return Difference(value, len(draws), [total(variances) for variances in (parts, few) if variances], exact_p)


def _above(values: Any, other_values: Any) -> Any:
    """Return numbers, arrays or tables minus others; 0 where two numbers differ by rounding alone."""
    gap = values - other_values
    return gap * (abs(gap) > _DUST * np.maximum(abs(values), abs(other_values)))


def of_mean(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return the variance of the mean of two or more numbers, and its degrees of freedom."""
    return float(values.var(ddof=1)) / len(values), len(values) - 1.0


def total(parts: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the root of a sum of variances, and its degrees of freedom by Welch and Satterthwaite.

    Args:
        parts: Variances, each with its degrees of freedom.
    """
    variance = sum(part for part, _ in parts)
    spread = sum(part**2 / freedom for part, freedom in parts)
    return math.sqrt(variance), variance**2 / spread if spread > 0 else _NORMAL


def holm(p: Sequence[float | None]) -> list[float | None]:
    """Return p values corrected for their number by Holm's method; an unknown p stays None and is not counted.

    The result is that of ``statsmodels.stats.multitest.multipletests``, which runs the garbage collector in each call:
    a third of a second.
    """
    values = np.sort([p_value for p_value in p if p_value is not None])
    steps = np.maximum.accumulate(values * np.arange(len(values), 0, -1))
    corrected = dict(zip(values.tolist(), np.minimum(steps, 1.0).tolist(), strict=True))
    return [None if p_value is None else corrected[p_value] for p_value in p]


def by_item(first: Side, second: Side) -> list[tuple[float, float]]:
    """Return the variance of a difference by the choice of items, with its degrees of freedom.

    Args:
        first: One side of the difference.
        second: The other side.

    Returns:
        A variance for each text or task whose items both sides kept; else one variance; none if no error is known.
    """
    mine = first.items
    theirs = second.items
    if mine is not None and theirs is not None and _sizes(mine) == _sizes(theirs):
        gaps = [_above(values, other_values) for values, other_values in zip(mine, theirs, strict=True)]
        several = [gap for gap in gaps if len(gap) > 1]
        return [(len(gap) * float(gap.var(ddof=1)), len(gap) - 1.0) for gap in several]
    if first.error_to_best is not None and second.error_to_best is not None:
        # the triangle inequality; the error of the best itself is 0 for a single seed
        return [((first.error_to_best + second.error_to_best) ** 2, _NORMAL)]
    if first.error is None or second.error is None:
        return []
    return [(first.error**2 + second.error**2, _NORMAL)]


def _sizes(items: Items) -> tuple[int, ...]:
    """Return the number of items of each text or task."""
    return tuple(map(len, items))


def _held_out(first: Side, second: Side, variance: float, freedom: float) -> tuple[float, float]:
    """Return the variance of a mean difference of held-out losses, with its degrees of freedom.

    Masks of two draws are evaluated on samples that they share. So the differences within draws are not independent,
    as `variance` and `freedom` assume. Both draws are noise: that of the masks (rows) and that of the samples
    (columns). Their sum is too wide rather than too narrow. Records that kept the means alone are handled in the same
    spirit: all of the variance may come from the samples.
    """
    if first.on_other_draws is None or second.on_other_draws is None:
        return freedom**2 * variance, freedom
    gaps = _above(first.on_other_draws, second.on_other_draws)
    means = [gaps.mean(axis=axis).dropna() for axis in (0, 1)]
    return sum(float(axis_means.var()) / len(axis_means) for axis_means in means), min(map(len, means)) - 1.0


def _mcnemar(first: Side, second: Side) -> float | None:
    """Return the p of the exact McNemar test of two masks on the items of one task.

    It is the sign test over the items that only one of the masks has right. None if there are several masks or tasks,
    or if items are not right or wrong.
    """
    if first.items is None or second.items is None or len(first.items) != 1 or first.n != 1 or second.n != 1:
        return None
    mine = first.items[0]
    theirs = second.items[0]
    if any(len(np.unique(np.abs(side[side != 0]).round(9))) > 1 for side in (mine, theirs)):
        return None
    return sign_p(int((mine > theirs).sum()), int((mine < theirs).sum()))


@cache
def sign_p(wins: int, losses: int) -> float:
    """Return the two-sided p of the exact sign test.

    Args:
        wins: The items that only the first side has right.
        losses: The items that only the second side has right.
    """
    from scipy.stats import binomtest

    return float(binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0
