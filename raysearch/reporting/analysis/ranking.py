"""Searchers over all settings: their ranks, and which of them differ significantly.

Losses of different calibrations have different units, so searchers are compared by their ranks: by Friedman's test that
none differs, and by Nemenyi's critical difference for each pair, which corrects for the number of pairs.
Source: Demšar, Statistical Comparisons of Classifiers over Multiple Data Sets, JMLR 2006, section 3.2.

Results at different M on the same samples are correlated. So searchers are ranked once for each model, calibration and
draw, by their mean rank over M. By held-out loss, whose draws share samples, they are ranked once for each model and
calibration.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from raysearch.reporting.analysis.frame import HELD_OUT_LOSS, Quantity, with_own_seeds, without_rounding_errors
from raysearch.stats.significance import LEVEL

_FEWEST = 3  # sets of samples, and searchers


@dataclass(frozen=True)
class Pair:
    """The comparison of two searchers over all sets of samples.

    Args:
        better: The searcher of the lower mean rank.
        worse: The other searcher.
        wins: The number of sets of samples on which the first is better.
        losses: The number of sets on which it is worse; on the remaining sets both are equal.
        significant: Whether Friedman's test rejects, and the mean ranks differ by more than the critical difference.
    """

    better: str
    worse: str
    wins: int
    losses: int
    significant: bool


@dataclass(frozen=True)
class Ranking:
    """The ranks of the searchers that use the objective and have a number in every setting and draw.

    Args:
        quantity: The quantity by which they are ranked.
        ranks: The mean rank of each searcher, best first; 1 is the best.
        n_sets: The number of sets of samples on which searchers are ranked.
        p: The p of Friedman's test that no searcher differs; None with fewer than three sets.
        critical: The least difference of mean ranks that is significant.
        pairs: Each pair of searchers.
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
        """Return the searchers that are significantly worse than one searcher."""
        return [pair.worse for pair in self.pairs if pair.better == searcher and pair.significant]


def ranking(frame: pd.DataFrame, quantity: Quantity) -> Ranking | None:
    """Rank the searchers of `with_own_seeds` by a quantity.

    Args:
        frame: The searches, see `cells_frame`.
        quantity: The quantity.

    Returns:
        The ranking; None if fewer than three searchers have a number everywhere.
    """
    from scipy.stats import friedmanchisquare

    searches = with_own_seeds(frame)
    measured = searches[searches["comparable"] & searches[quantity.key].notna()]
    badness = -quantity.sign * quantity.values_of(measured)
    places = [measured[name] for name in ("model", "calibration", "draw", "remove", "searcher")]
    table = badness.groupby(places, observed=True).mean().unstack("searcher").dropna(axis="columns")
    if len(table.columns) < _FEWEST:
        return None
    n_labels = 2 if quantity == HELD_OUT_LOSS else 3  # the first labels of `places`, which identify a set of samples
    ranks = ranks_of(ranks_of(table).groupby(level=list(range(n_labels)), observed=True).mean())
    n_sets, n_searchers = ranks.shape
    means = ranks.mean().sort_values(kind="stable")
    critical = _quantile(n_searchers) * math.sqrt(n_searchers * (n_searchers + 1) / (6 * n_sets))
    p = None
    if n_sets >= _FEWEST:
        all_equal = np.ptp(ranks.to_numpy()) == 0
        p = 1.0 if all_equal else float(friedmanchisquare(*ranks.T.to_numpy()).pvalue)
    columns = {name: column.to_numpy() for name, column in ranks.items()}
    pairs = []
    for (better, low), (worse, high) in itertools.combinations(means.items(), 2):
        wins = int((columns[better] < columns[worse]).sum())
        losses = int((columns[better] > columns[worse]).sum())
        significant = p is not None and p <= LEVEL and high - low > critical
        pairs.append(Pair(better, worse, wins, losses, significant))
    return Ranking(quantity, means.to_dict(), n_sets, p, critical, pairs)


def ranks_of(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the ranks of the numbers of each row, the lowest first; equal numbers share the mean of their ranks."""
    return without_rounding_errors(rows).rank(axis="columns")


@functools.cache  # computing it takes about a second
def _quantile(n_searchers: int) -> float:
    """Return the quantile of Nemenyi's test: that of the studentized range, divided by the root of 2."""
    from scipy.stats import studentized_range

    return float(studentized_range.ppf(1 - LEVEL, n_searchers, np.inf)) / math.sqrt(2)
