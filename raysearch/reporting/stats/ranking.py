"""Searchers over all settings: their ranks, and which of them differ significantly.

Losses of different calibrations have different units, so searchers are compared by their ranks: Friedman's test that
none differs, and Nemenyi's critical difference for every pair, which corrects for their number.
Source: Demšar, Statistical Comparisons of Classifiers over Multiple Data Sets, JMLR 2006, section 3.2.

What one set of samples happens to favour, it favours at every M. So searchers are ranked once for each model,
calibration and draw, by their mean rank over M; by held-out loss, for which draws share samples, once for each model
and calibration.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from raysearch.reporting.stats.difference import LEVEL
from raysearch.reporting.stats.frame import HELD_OUT_LOSS, Quantity, by_own_luck, tidy

_FEWEST = 3  # sets of samples, and searchers


@dataclass(frozen=True)
class Pair:
    """Two searchers over all sets of samples.

    Args:
        better: The one of the lower mean rank.
        wins: Sets of samples by which that is better.
        losses: Sets by which it is worse; by the others both are equal.
        told: Whether their ranks are further apart than the critical difference, and Friedman's test rejects.
    """

    better: str
    worse: str
    wins: int
    losses: int
    told: bool


@dataclass(frozen=True)
class Ranking:
    """The searchers that use the objective and have a number in every setting and draw.

    Args:
        ranks: The mean rank of each, best first; 1 is the best.
        n_sets: Sets of samples that searchers are ranked by.
        p: Of Friedman's test that none differs; None with fewer than three sets.
        critical: The difference of mean ranks that tells two of them apart.
    """

    quantity: Quantity
    ranks: Mapping[str, float]
    n_sets: int
    p: float | None
    critical: float
    pairs: Sequence[Pair]

    @property
    def best(self) -> str:
        """The searcher of the lowest mean rank."""
        return next(iter(self.ranks))

    def behind(self, searcher: str) -> list[str]:
        """The searchers that are told to be worse than one."""
        return [pair.worse for pair in self.pairs if pair.better == searcher and pair.told]


def ranking(frame: pd.DataFrame, quantity: Quantity) -> Ranking | None:
    """Rank the searchers of `by_own_luck` by a quantity; None where there are too few of them, or no number."""
    from scipy.stats import friedmanchisquare

    own = by_own_luck(frame)
    known = own[own["comparable"] & own[quantity.key].notna()]
    badness = -quantity.sign * quantity.of(known)
    places = [known[name] for name in ("model", "calibration", "draw", "remove", "searcher")]
    table = badness.groupby(places, observed=True).mean().unstack("searcher").dropna(axis="columns")
    if len(table.columns) < _FEWEST:
        return None
    n_labels = 2 if quantity == HELD_OUT_LOSS else 3  # of a set of samples
    ranks = ranks_of(ranks_of(table).groupby(level=list(range(n_labels)), observed=True).mean())
    n, k = ranks.shape
    means = ranks.mean().sort_values(kind="stable")
    critical, p = _quantile(k) * math.sqrt(k * (k + 1) / (6 * n)), None
    if n >= _FEWEST:
        all_equal = np.ptp(ranks.to_numpy()) == 0
        p = 1.0 if all_equal else float(friedmanchisquare(*ranks.T.to_numpy()).pvalue)
    columns = {name: of.to_numpy() for name, of in ranks.items()}
    pairs = []
    for (better, low), (worse, high) in itertools.combinations(means.items(), 2):
        wins, losses = (int(of.sum()) for of in (columns[better] < columns[worse], columns[better] > columns[worse]))
        told = p is not None and p <= LEVEL and high - low > critical
        pairs.append(Pair(better, worse, wins, losses, told))
    return Ranking(quantity, means.to_dict(), n, p, critical, pairs)


def ranks_of(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the ranks of the numbers of each row, the lowest first; equal ones share the mean of theirs."""
    return tidy(rows).rank(axis="columns")


@functools.cache  # a second or so
def _quantile(n_searchers: int) -> float:
    """The quantile of Nemenyi's test: the studentized range's, divided by the root of 2."""
    from scipy.stats import studentized_range

    return float(studentized_range.ppf(1 - LEVEL, n_searchers, np.inf)) / math.sqrt(2)
