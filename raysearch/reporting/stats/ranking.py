"""Searchers over all settings: their ranks, and which of them are told apart.

Losses of different calibrations have different units, so searchers are compared by their ranks in each setting:
Friedman's test that none differs, and Nemenyi's critical difference for every pair, which corrects for their number.
Source: Demšar, Statistical Comparisons of Classifiers over Multiple Data Sets, JMLR 2006, section 3.2.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from raysearch.reporting.stats.comparison import Comparison
from raysearch.reporting.stats.difference import LEVEL
from raysearch.reporting.stats.frame import Quantity

_FEWEST = 3  # settings, and searchers


@dataclass(frozen=True)
class Pair:
    """Two searchers over all settings.

    Args:
        better: The one of the lower mean rank.
        wins: Settings in which that is better.
        losses: Settings in which it is worse; in the others both are equal.
        sign_p: Of the exact sign test, for this pair alone.
        told: Whether their ranks are further apart than the critical difference, and Friedman's test rejects.
    """

    better: str
    worse: str
    wins: int
    losses: int
    sign_p: float
    told: bool


@dataclass(frozen=True)
class Ranking:
    """The searchers that have a number in every setting.

    Args:
        ranks: The mean rank of each, best first; 1 is the best.
        p: Of Friedman's test that none differs.
        critical: The difference of mean ranks that tells two of them apart.
    """

    quantity: Quantity
    ranks: Mapping[str, float]
    n_settings: int
    p: float
    critical: float
    pairs: Sequence[Pair]

    @property
    def best(self) -> str:
        """The searcher of the lowest mean rank."""
        return next(iter(self.ranks))

    def behind(self, searcher: str) -> list[str]:
        """The searchers that are told to be worse than one."""
        return [pair.worse for pair in self.pairs if pair.better == searcher and pair.told]


def ranking(comparisons: Sequence[Comparison]) -> Ranking | None:
    """Rank the searchers that use the objective over settings of one quantity; None where there are too few."""
    rows = [{one.searcher: one.behind for one in found.rivals if one.uses_objective} for found in comparisons]
    table = pd.DataFrame(rows).dropna(axis="columns")
    if len(table) < _FEWEST or table.shape[1] < _FEWEST:
        return None
    from scipy.stats import friedmanchisquare

    ranks = table.round(12).rank(axis="columns")
    means = ranks.mean().sort_values(kind="stable")
    n, k = table.shape
    p = float(friedmanchisquare(*(ranks[name] for name in ranks)).pvalue)
    p = 1.0 if math.isnan(p) else p
    critical = _quantile(k) * math.sqrt(k * (k + 1) / (6 * n))
    columns = {name: ranks[name].to_numpy() for name in means.index}
    pairs = []
    for better, worse in itertools.combinations(means.index, 2):
        wins, losses = (int(of.sum()) for of in (columns[better] < columns[worse], columns[better] > columns[worse]))
        told = p <= LEVEL and bool(means[worse] - means[better] > critical)
        pairs.append(Pair(str(better), str(worse), wins, losses, _sign_p(wins, losses), told))
    return Ranking(
        comparisons[0].quantity, {str(name): float(rank) for name, rank in means.items()}, n, p, critical, pairs
    )


@functools.cache
def _sign_p(wins: int, losses: int) -> float:
    from scipy.stats import binomtest

    return float(binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0


@functools.cache  # a second or so
def _quantile(n_searchers: int) -> float:
    """The quantile of Nemenyi's test: the studentized range's, divided by the root of 2."""
    from scipy.stats import studentized_range

    return float(studentized_range.ppf(1 - LEVEL, n_searchers, np.inf)) / math.sqrt(2)
