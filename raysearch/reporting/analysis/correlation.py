"""Rank correlations of losses and assessments over searchers, with permutation tests and bootstrap intervals.

Every quantity gets the sign by which more is better before it is ranked. So rho = +1 if the searcher that is better by
one quantity is better by the other too, and -1 if it is worse. Ties share the mean of their ranks. Searchers that found
the same masks are one point, not several. Searchers that do not use the objective are left out.

The test is over all permutations of the searchers, see `permutation_p`. If two searchers found the same
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
import pandas as pd

from raysearch.reporting.analysis.frame import Quantity, Setting, settings
from raysearch.stats.rank import RESAMPLES, bootstrap_interval, permutation_p, spearman

FEWEST = 4
FEWEST_FOR_INTERVAL = 6


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

    Returns:
        The correlations, setting by setting.
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
    for searcher, members in searches.groupby("searcher", observed=True):
        first_by_masks.setdefault(frozenset(zip(members["draw"], members["mask"], strict=True)), searcher)
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
