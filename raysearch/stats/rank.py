"""Spearman's rank correlation, with permutation tests and bootstrap intervals.

Numbers that are equal up to rounding errors are ties, and share the mean of their ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

RESAMPLES = 9999
MOST_EXACT = 10  #: the most points whose pairings are all counted
_Numbers = npt.NDArray[np.float64]  # the values of one quantity, [n]
_DIGITS = 12  # two numbers that are equal in so many significant digits are tied


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation.

    Args:
        first: A number of each item.
        second: Another number of each item, in the same order.

    Returns:
        The correlation, -1 … 1; None for fewer than three items, or if all numbers of a list are equal.
    """
    is_constant = len({*first}) == 1 or len({*second}) == 1
    if len(first) < 3 or is_constant:
        return None
    from scipy.stats import spearmanr

    return float(spearmanr(first, second).statistic)


def permutation_p(x: _Numbers, y: _Numbers) -> float:
    """Return the two-sided p of Spearman's rho over all pairings; over `RESAMPLES` pairings if there are too many.

    Args:
        x: The one quantity, [n].
        y: The other quantity, [n].

    Returns:
        The p value, 0 … 1.
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
        subsets_of_size = subsets[np.bitwise_count(subsets) == paired]
        for index, partner in enumerate(twice_y):
            without_partner = subsets_of_size[subsets_of_size >> index & 1 == 0]
            product = element * partner
            counts[without_partner | 1 << index, product:] += counts[without_partner, : largest + 1 - product]
    by_sum = counts[-1]
    middle = twice_x.sum() * twice_y.sum() / len(x)
    is_as_far = np.abs(np.arange(largest + 1) - middle) >= abs(int(twice_x @ twice_y) - middle) - 1e-9
    return float(by_sum[is_as_far].sum() / by_sum.sum())


def spearman(x: _Numbers, y: _Numbers) -> _Numbers:
    """Return Spearman's rho along the last axis; NaN where all values of one side are equal.

    Args:
        x: The one quantity, [..., n].
        y: The other quantity, [..., n].

    Returns:
        The correlations, [...], each -1 … 1.
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


def _without_dust(values: _Numbers) -> _Numbers:
    """Return values rounded relative to the largest one, so that sums of the same numbers in another order tie."""
    largest = np.abs(values[np.isfinite(values)]).max(initial=0.0)
    return values if largest == 0 else np.round(values / largest, _DIGITS)
