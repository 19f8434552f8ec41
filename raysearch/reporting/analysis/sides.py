"""The two sides of a comparison of searchers: their difference, and how much of it noise explains.

The error of the difference has up to three parts, one for each kind of noise:

- **by draw**: with several draws of the calibration's samples, the differences within each draw are a sample, and their
  mean is tested by Student's paired t. The result holds for other draws. It includes the noise of the seeds where each
  draw has its own seeds. Held-out losses of two draws share a part of their samples, see `_held_out_variance`.
- **by seed**: with one draw, or where draws share seeds, the spread over seeds of each side, as in Welch's test.
- **by item**: the choice of the samples, windows or items on which a number was measured. Both sides have the same
  items, so the paired differences are used where they are kept. Else the two errors are joined as if the items were
  different, which is too wide rather than too narrow. With one draw of a calibration the result holds for these masks,
  not for other samples.

Quantities that are compared by ratios are used by their logarithms. A difference is significant only if the draws or
seeds alone reject noise, too.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from raysearch.core.json import finite
from raysearch.reporting.analysis.frame import CALIBRATION_LOSS, HELD_OUT_LOSS, Items, Quantity
from raysearch.stats.difference import NORMAL, Difference, Variance, joint_error, variance_of_mean
from raysearch.stats.paired import mcnemar_p

_DUST = 1e-12  # relative; differences below it come from the order of additions


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

    Returns:
        The difference, with its standard errors if they can be estimated.
    """
    draws = [draw for draw in first.by_draw if draw in second.by_draw]
    if draws:
        first = first.within(draws)
        second = second.within(draws)
    without_error = Difference(first.score - second.score, len(draws))
    if not draws or not math.isfinite(without_error.value):  # nothing can be measured of a ruined model
        return without_error
    without_error = replace(without_error, value=float(_above(first.score, second.score)))
    if any(side.shares_seeds and side.stochastic and len(side.by_seed) < 2 for side in (first, second)):
        return without_error  # the result of another seed is unknown
    by_draw = _variances_by_draw(first, second, quantity)
    sides_with_seeds = [side for side in (first, second) if side.shares_seeds and len(side.by_seed) > 1]
    by_seed = [variance_of_mean(side.by_seed) for side in sides_with_seeds]
    # The mean over draws of a loss has the noise of its samples already.
    is_loss_over_draws = len(draws) > 1 and quantity in (CALIBRATION_LOSS, HELD_OUT_LOSS)
    by_items = [] if is_loss_over_draws else by_item(first, second)
    few = [*by_draw, *by_seed]
    everything = [*few, *by_items]
    errors = [joint_error(variances) for variances in (everything, few) if variances]
    exact_p = _mcnemar(first, second) if len(draws) == 1 and everything else None
    return replace(without_error, errors=errors, exact_p=exact_p)


def _variances_by_draw(first: Side, second: Side, quantity: Quantity) -> list[Variance]:
    """Return the variance of the mean difference over draws, which both sides have; none with one draw."""
    if len(first.by_draw) < 2:
        return []
    means = [np.array([side.by_draw[draw].mean() for draw in first.by_draw]) for side in (first, second)]
    by_draw = variance_of_mean(_above(*means))
    return [_held_out_variance(first, second, by_draw) if quantity == HELD_OUT_LOSS else by_draw]


def _above(values: Any, other_values: Any) -> Any:
    """Return numbers, arrays or tables minus others; 0 where two numbers differ by rounding alone."""
    gap = values - other_values
    is_above_rounding = abs(gap) > _DUST * np.maximum(abs(values), abs(other_values))
    return gap * is_above_rounding


def by_item(first: Side, second: Side) -> list[Variance]:
    """Return the variance of a difference by the choice of items.

    Args:
        first: One side of the difference.
        second: The other side.

    Returns:
        A variance for each text or task whose items both sides kept; else one variance; none if no error is known.
    """
    first_items = first.items
    second_items = second.items
    if first_items is not None and second_items is not None and _sizes(first_items) == _sizes(second_items):
        gaps = [_above(values, other_values) for values, other_values in zip(first_items, second_items, strict=True)]
        # Items are contributions: the difference is their sum, not their mean.
        return [Variance(len(gap) * float(gap.var(ddof=1)), len(gap) - 1.0) for gap in gaps if len(gap) > 1]
    if first.error_to_best is not None and second.error_to_best is not None:
        # the triangle inequality; the error of the best itself is 0 for a single seed
        return [Variance((first.error_to_best + second.error_to_best) ** 2, NORMAL)]
    if first.error is None or second.error is None:
        return []
    return [Variance(first.error**2 + second.error**2, NORMAL)]


def _sizes(items: Items) -> tuple[int, ...]:
    """Return the number of items of each text or task."""
    return tuple(map(len, items))


def _held_out_variance(first: Side, second: Side, by_draw: Variance) -> Variance:
    """Return the variance of a mean difference of held-out losses.

    Masks of two draws are evaluated on samples that they share. So the differences within draws are not independent, as
    the variance `by_draw` assumes. Both draws are noise: that of the masks (rows) and that of the samples (columns).
    Their sum is too wide rather than too narrow. Records that kept the means alone are handled in the same spirit: all
    of the variance may come from the samples.
    """
    if first.on_other_draws is None or second.on_other_draws is None:
        return Variance(by_draw.freedom**2 * by_draw.value, by_draw.freedom)
    gaps = _above(first.on_other_draws, second.on_other_draws)
    means = [gaps.mean(axis=axis).dropna() for axis in (0, 1)]
    variance = sum(float(axis_means.var()) / len(axis_means) for axis_means in means)
    return Variance(variance, min(map(len, means)) - 1.0)


def _mcnemar(first: Side, second: Side) -> float | None:
    """Return the p of the exact McNemar test of two masks on the items of one task.

    None if there are several masks or tasks, or if items are not right or wrong.
    """
    if first.items is None or second.items is None or len(first.items) != 1 or first.n != 1 or second.n != 1:
        return None
    first_items = first.items[0]
    second_items = second.items[0]
    if not _is_right_or_wrong(first_items) or not _is_right_or_wrong(second_items):
        return None
    return mcnemar_p(int((first_items > second_items).sum()), int((first_items < second_items).sum()))


def _is_right_or_wrong(items: npt.NDArray[np.float64]) -> bool:
    """Return whether items have one value other than 0, so that they are right or wrong."""
    return len(np.unique(np.abs(items[items != 0]).round(9))) <= 1
