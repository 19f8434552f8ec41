"""Rank correlations of losses and assessments over searchers, with permutation tests and bootstrap intervals.

Every quantity is turned so that more is better before it is ranked: rho = +1 if the searcher that is better by the one
is better by the other too, -1 if it is worse. Ties share the mean of their ranks. Searchers that found the same masks
are one point, not several, and those that do not use the objective are none. The test is that of all permutations of
the searchers, exact for up to `MOST_EXACT` points. Where two of them found the same mask, in whatever draws, they have
that in common, so masks are permuted instead. That other masks have layers in common is not allowed for. Intervals only
describe, for those of so few points leave out zero too often.

Source: Kim et al. 2026 (arXiv 2604.24938), Figure 3 and section 5.3. Its printed medians and ranges come out of its
printed averages by this sign and these ties (tests/reporting/test_published.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from raysearch.reporting.stats.frame import Quantity, Setting, settings

RESAMPLES = 9999
FEWEST = 4
FEWEST_FOR_INTERVAL = 6
MOST_EXACT = 10
_Numbers = npt.NDArray[np.float64]  # of one quantity, a searcher each, [n]
_DIGITS = 12  # significant digits that two numbers must differ in, or they are tied


@dataclass(frozen=True)
class Correlation:
    """How two quantities rank the searchers of a setting.

    Args:
        n: Searchers that have both and found other masks; each counts once, by the mean over its seeds and draws.
        rho: Spearman's; None if a quantity is the same for all.
        p: Two-sided, of the permutation test that the two rankings have nothing to do with each other.
        low: Lower end of the 95 % interval; None with fewer than `FEWEST_FOR_INTERVAL` searchers, or where most
            resamples have no correlation.
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
    """Every setting's rank correlation of each two quantities, where at least `FEWEST` searchers have both."""
    found = []
    for setting, cells in settings(frame[frame["uses_objective"]]):
        known = cells["removed"].map(len) > 0
        searches = _distinct(cells.assign(mask=cells["removed"].where(known, cells["searcher"])))
        for first, second in itertools.combinations(quantities, 2):  # the second is the mask's own in every draw
            numbers = {axis: one.sign * one.of(searches) for axis, one in (("x", first), ("y", second))}
            both = searches[["searcher", "draw", "mask"]].assign(**numbers).dropna()
            if (n := both["searcher"].nunique()) >= FEWEST:
                found.append(Correlation(setting, first, second, n, *_correlate(both)))
    return found


def _distinct(searches: pd.DataFrame) -> pd.DataFrame:
    """The searches of a setting without those of a searcher that found the same masks as one before it."""
    first_by_masks: dict[frozenset[tuple[object, ...]], str] = {}
    for searcher, mine in searches.groupby("searcher", observed=True):
        first_by_masks.setdefault(frozenset(zip(mine["draw"], mine["mask"], strict=True)), searcher)
    return searches[searches["searcher"].isin([*first_by_masks.values()])]


def masks_p(searches: pd.DataFrame) -> float:
    """Return the two-sided p of Spearman's rho of searchers' means, over `RESAMPLES` permutations of their masks.

    Args:
        searches: One a row: its ``searcher``, its ``mask``, and the two numbers, ``x`` and ``y``, which is the mask's.
    """
    mask = searches.groupby("mask", sort=False).ngroup()
    y = searches.groupby(mask)["y"].mean().to_numpy()
    weights = pd.crosstab(searches["searcher"], mask, normalize="index").to_numpy()  # in means, [searchers, masks]
    x = searches.groupby("searcher", observed=True)["x"].mean().to_numpy()
    permuted = np.random.default_rng(0).permuted(np.tile(y, (RESAMPLES, 1)), axis=1)
    further = np.abs(spearman(x, permuted @ weights.T)) >= abs(spearman(x, weights @ y)) - 1e-9
    return float((1 + further.sum()) / (1 + RESAMPLES))


def permutation_p(x: _Numbers, y: _Numbers) -> float:
    """Return the two-sided p of Spearman's rho over all pairings; over `RESAMPLES` of them where they are too many."""
    from scipy.stats import permutation_test, rankdata

    if len(x) <= MOST_EXACT:
        return _exact_p(rankdata(_without_dust(x)), rankdata(_without_dust(y)))

    def rho(some: _Numbers, axis: int) -> _Numbers:
        return spearman(some, y)

    rng = np.random.default_rng(0)
    return float(permutation_test((x,), rho, permutation_type="pairings", n_resamples=RESAMPLES, rng=rng).pvalue)


def _exact_p(x: _Numbers, y: _Numbers) -> float:
    """The share of all n! pairings of ranks with a sum of products at least as far from its mean.

    Doubled ranks are whole numbers, so few sums are possible; they are counted over the subsets of `y` that the first
    elements of `x` may be paired with, which takes n 2^n steps in place of n!.
    """
    twice_x, twice_y = np.rint(2 * x).astype(int), np.rint(2 * y).astype(int)
    largest = int(np.sort(twice_x) @ np.sort(twice_y))
    subsets = np.arange(1 << len(y))
    counts = np.zeros((len(subsets), largest + 1), np.int64)  # of the pairings of each subset, by their sum
    counts[0, 0] = 1
    for paired, element in enumerate(twice_x):
        of_size = subsets[np.bitwise_count(subsets) == paired]
        for place, other in enumerate(twice_y):
            without = of_size[of_size >> place & 1 == 0]
            counts[without | 1 << place, element * other :] += counts[without, : largest + 1 - element * other]
    ways = counts[-1]
    middle = twice_x.sum() * twice_y.sum() / len(x)
    far = np.abs(np.arange(largest + 1) - middle) >= abs(int(twice_x @ twice_y) - middle) - 1e-9
    return float(ways[far].sum() / ways.sum())


def spearman(x: _Numbers, y: _Numbers) -> _Numbers:
    """Return Spearman's rho of numbers, [..., n], along the last axis; NaN where one side is the same throughout."""
    from scipy.stats import rankdata

    a, b = (rankdata(_without_dust(side), axis=-1) for side in (x, y))
    a, b = a - a.mean(axis=-1, keepdims=True), b - b.mean(axis=-1, keepdims=True)
    scale = np.sqrt((a * a).sum(axis=-1) * (b * b).sum(axis=-1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(scale > 0, (a * b).sum(axis=-1) / scale, np.nan))


def bootstrap_interval(x: _Numbers, y: _Numbers) -> tuple[float | None, float | None]:
    """Both ends of the 95 % percentile interval of Spearman's rho, by drawing pairs with replacement.

    Draws in which one side is the same throughout have no correlation and are left out; None where most have none.
    """
    drawn = np.random.default_rng(0).integers(len(x), size=(RESAMPLES, len(x)))
    rhos = spearman(x[drawn], y[drawn])
    defined = rhos[np.isfinite(rhos)]
    if len(defined) < len(rhos) / 2:
        return None, None
    low, high = np.quantile(defined, [0.025, 0.975])
    return float(low), float(high)


def _correlate(searches: pd.DataFrame) -> tuple[float | None, float | None, float | None, float | None]:
    """Rho of the means of searchers, its p, and both ends of its interval."""
    x, y = searches.groupby("searcher", observed=True)[["x", "y"]].mean().to_numpy().T
    rho = float(spearman(x, y))
    if not np.isfinite(rho):
        return None, None, None, None
    shared = (searches.groupby("mask")["searcher"].nunique() > 1).any()
    interval = bootstrap_interval(x, y) if len(x) >= FEWEST_FOR_INTERVAL else (None, None)
    return rho, masks_p(searches) if shared else permutation_p(x, y), *interval


def _without_dust(values: _Numbers) -> _Numbers:
    """Round relative to the largest, so that two sums of the same numbers in another order tie."""
    largest = np.abs(values[np.isfinite(values)]).max(initial=0.0)
    return values if largest == 0 else np.round(values / largest, _DIGITS)
