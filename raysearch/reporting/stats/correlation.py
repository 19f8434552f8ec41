"""Rank correlations of losses and assessments over searchers, with permutation tests and bootstrap intervals.

Every quantity gets the sign by which more is better before it is ranked. So rho = +1 if the searcher that is better by
one quantity is better by the other too, and -1 if it is worse. Ties share the mean of their ranks. Searchers that found
the same masks are one point, not several. Searchers that do not use the objective are left out.

The test is over all permutations of the searchers, exact for up to `MOST_EXACT` points. If two searchers found the same
mask, on any draw, their numbers are not independent, so masks are permuted instead. The test does not allow for layers
that different masks have in common. Intervals are a description only: with so few points they exclude zero too often.

Source: Kim et al. 2026 (arXiv 2604.24938), Figure 3 and section 5.3. Its printed medians and ranges follow from its
printed averages with this sign and these ties (tests/reporting/test_published.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from raysearch.reporting.stats.frame import Quantity, Setting, settings

RESAMPLES = 9999
FEWEST = 4
FEWEST_FOR_INTERVAL = 6
MOST_EXACT = 10
_Numbers = npt.NDArray[np.float64]  # the values of one quantity, one per searcher, [n]
_DIGITS = 12  # two numbers that are equal in so many significant digits are tied


@dataclass(frozen=True)
class Correlation:
    """The rank correlation of two quantities over the searchers of a setting.

    Args:
        setting: The setting.
        first: The one quantity.
        second: The other quantity.
        n: The number of searchers that have both and found different masks; each counts once, by the mean over its
            seeds and draws.
        rho: Spearman's rho; None if a quantity is the same for all searchers.
        p: The two-sided p of the permutation test that the two rankings are independent.
        low: The lower end of the 95 % interval; None with fewer than `FEWEST_FOR_INTERVAL` searchers, or if most
            resamples have no correlation.
        high: The upper end of the interval.
    """

    setting: Setting
    first: Quantity
    second: Quantity
    n: int
    rho: float | None
    p: float | None
    low: float | None
    high: float | None


def correlations(frame: pd.DataFrame, quantities: Sequence[Quantity]) -> list[Correlation]:
    """Return the rank correlation of each pair of quantities in each setting with at least `FEWEST` searchers.

    Args:
        frame: The searches, see `cells_frame`.
        quantities: The quantities.
    """
    by_setting = []
    for setting, cells in settings(frame[frame["uses_objective"]]):
        has_mask = cells["removed"].map(len) > 0
        searches = _distinct(cells.assign(mask=cells["removed"].where(has_mask, cells["searcher"])))
        for first, second in itertools.combinations(quantities, 2):  # a mask has the same second number in every draw
            x = first.sign * first.values_of(searches)
            y = second.sign * second.values_of(searches)
            complete = searches[["searcher", "draw", "mask"]].assign(x=x, y=y).dropna()
            if (n := complete["searcher"].nunique()) >= FEWEST:
                test = _correlate(complete)
                by_setting.append(Correlation(setting, first, second, n, test.rho, test.p, test.low, test.high))
    return by_setting


def _distinct(searches: pd.DataFrame) -> pd.DataFrame:
    """Return the searches of a setting, without searchers that found the same masks as an earlier searcher."""
    first_by_masks: dict[frozenset[tuple[object, ...]], str] = {}
    for searcher, mine in searches.groupby("searcher", observed=True):
        first_by_masks.setdefault(frozenset(zip(mine["draw"], mine["mask"], strict=True)), searcher)
    return searches[searches["searcher"].isin([*first_by_masks.values()])]


def masks_p(searches: pd.DataFrame) -> float:
    """Return the two-sided p of Spearman's rho of searchers' means, over `RESAMPLES` permutations of their masks.

    Args:
        searches: One search per row: its ``searcher``, its ``mask``, and the two numbers, ``x`` and ``y``. All searches
            of a mask have the same ``y``.
    """
    mask = searches.groupby("mask", sort=False).ngroup()
    y = searches.groupby(mask)["y"].mean().to_numpy()
    weights = pd.crosstab(searches["searcher"], mask, normalize="index").to_numpy()  # of the means, [searchers, masks]
    x = searches.groupby("searcher", observed=True)["x"].mean().to_numpy()
    permuted = np.random.default_rng(0).permuted(np.tile(y, (RESAMPLES, 1)), axis=1)
    further = np.abs(spearman(x, permuted @ weights.T)) >= abs(spearman(x, weights @ y)) - 1e-9
    return float((1 + further.sum()) / (1 + RESAMPLES))


def permutation_p(x: _Numbers, y: _Numbers) -> float:
    """Return the two-sided p of Spearman's rho over all pairings; over `RESAMPLES` pairings if there are too many.

    Args:
        x: The one quantity, [n].
        y: The other quantity, [n].
    """
    from scipy.stats import permutation_test, rankdata

    if len(x) <= MOST_EXACT:
        return _exact_p(rankdata(_without_dust(x)), rankdata(_without_dust(y)))

    def rho(permuted: _Numbers, axis: int) -> _Numbers:
        return spearman(permuted, y)

    rng = np.random.default_rng(0)
    return float(permutation_test((x,), rho, permutation_type="pairings", n_resamples=RESAMPLES, rng=rng).pvalue)


def _exact_p(x: _Numbers, y: _Numbers) -> float:
    """Return the share of all n! pairings of ranks whose sum of products is at least as far from the mean sum.

    Doubled ranks are whole numbers, so few sums are possible. The pairings are counted by their sum for each subset of
    `y` that the first elements of `x` may be paired with. This takes n 2^n steps in place of n!.
    """
    twice_x = np.rint(2 * x).astype(int)
    twice_y = np.rint(2 * y).astype(int)
    largest = int(np.sort(twice_x) @ np.sort(twice_y))
    subsets = np.arange(1 << len(y))
    counts = np.zeros((len(subsets), largest + 1), np.int64)  # the number of pairings of each subset, by their sum
    counts[0, 0] = 1
    for paired, element in enumerate(twice_x):
        of_size = subsets[np.bitwise_count(subsets) == paired]
        for place, partner in enumerate(twice_y):
            without_partner = of_size[of_size >> place & 1 == 0]
            product = element * partner
            counts[without_partner | 1 << place, product:] += counts[without_partner, : largest + 1 - product]
    by_sum = counts[-1]
    middle = twice_x.sum() * twice_y.sum() / len(x)
    is_as_far = np.abs(np.arange(largest + 1) - middle) >= abs(int(twice_x @ twice_y) - middle) - 1e-9
    return float(by_sum[is_as_far].sum() / by_sum.sum())


def spearman(x: _Numbers, y: _Numbers) -> _Numbers:
    """Return Spearman's rho along the last axis; NaN where all values of one side are equal.

    Args:
        x: The one quantity, [..., n].
        y: The other quantity, [..., n].
    """
    x_ranks = _centred_ranks(x)
    y_ranks = _centred_ranks(y)
    scale = np.sqrt((x_ranks * x_ranks).sum(axis=-1) * (y_ranks * y_ranks).sum(axis=-1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(scale > 0, (x_ranks * y_ranks).sum(axis=-1) / scale, np.nan))


def _centred_ranks(values: _Numbers) -> _Numbers:
    from scipy.stats import rankdata

    ranks = rankdata(_without_dust(values), axis=-1)
    return np.asarray(ranks - ranks.mean(axis=-1, keepdims=True))


def bootstrap_interval(x: _Numbers, y: _Numbers) -> tuple[float | None, float | None]:
    """Return both ends of the 95 % percentile interval of Spearman's rho, by drawing pairs with replacement.

    Resamples in which all values of one side are equal have no correlation and are left out.

    Args:
        x: The one quantity, [n].
        y: The other quantity, [n].

    Returns:
        The lower and the upper end; None for both if most resamples have no correlation.
    """
    drawn = np.random.default_rng(0).integers(len(x), size=(RESAMPLES, len(x)))
    rhos = spearman(x[drawn], y[drawn])
    defined = rhos[np.isfinite(rhos)]
    if len(defined) < len(rhos) / 2:
        return None, None
    low, high = np.quantile(defined, [0.025, 0.975])
    return float(low), float(high)


class _Test(NamedTuple):
    """Rho, its p, and both ends of its interval."""

    rho: float | None
    p: float | None = None
    low: float | None = None
    high: float | None = None


def _correlate(searches: pd.DataFrame) -> _Test:
    """Return the correlation of the means of searchers."""
    x, y = searches.groupby("searcher", observed=True)[["x", "y"]].mean().to_numpy().T
    rho = float(spearman(x, y))
    if not np.isfinite(rho):
        return _Test(None)
    masks_are_shared = (searches.groupby("mask")["searcher"].nunique() > 1).any()
    p = masks_p(searches) if masks_are_shared else permutation_p(x, y)
    low, high = bootstrap_interval(x, y) if len(x) >= FEWEST_FOR_INTERVAL else (None, None)
    return _Test(rho, p, low, high)


def _without_dust(values: _Numbers) -> _Numbers:
    """Return values rounded relative to the largest one, so that sums of the same numbers in another order tie."""
    largest = np.abs(values[np.isfinite(values)]).max(initial=0.0)
    return values if largest == 0 else np.round(values / largest, _DIGITS)
