"""Searchers over all settings: their ranks, and which of them are told apart.

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
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import numpy.typing as npt
import pandas as pd

from raysearch.reporting.stats.difference import LEVEL, sign_p
from raysearch.reporting.stats.frame import HELD_OUT_LOSS, Quantity

_FEWEST = 3  # sets of samples, and searchers
_DIGITS = 12  # after the point that two numbers must differ in, or they are tied
_Ranks = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Pair:
    """Two searchers over all sets of samples.

    Args:
        better: The one of the lower mean rank.
        wins: Sets of samples by which that is better.
        losses: Sets by which it is worse; by the others both are equal.
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
    """The searchers that have a number in every setting and draw.

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
    """Rank the searchers that use the objective by a quantity; None where there are too few searchers, or no number."""
    known = frame[frame["comparable"] & frame["uses_objective"] & frame[quantity.key].notna()]
    badness = -quantity.sign * quantity.of(known)
    seeds: dict[tuple[object, ...], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    labels = (known[name] for name in ("model", "calibration", "draw", "remove", "searcher"))
    for *place, searcher, value in zip(*labels, badness, strict=True):
        seeds[tuple(place)][searcher].append(value)
    searchers = [name for name in known["searcher"].cat.categories if all(name in of for of in seeds.values())]
    if not seeds or len(searchers) < _FEWEST:
        return None
    n_labels = 2 if quantity == HELD_OUT_LOSS else 3  # of a set of samples
    in_settings = _ranks([[fmean(of[name]) for name in searchers] for of in seeds.values()])
    by_set: dict[tuple[object, ...], list[_Ranks]] = defaultdict(list)
    for setting, of_setting in zip(seeds, in_settings, strict=True):
        by_set[setting[:n_labels]].append(of_setting)
    ranks = _ranks([np.mean(of_set, axis=0) for of_set in by_set.values()])
    means = sorted(zip(searchers, ranks.mean(axis=0).tolist(), strict=True), key=lambda one: one[1])
    n, k = ranks.shape
    p, critical = _friedman(ranks), _quantile(k) * math.sqrt(k * (k + 1) / (6 * n))
    columns = dict(zip(searchers, ranks.T, strict=True))
    pairs = []
    for (better, low), (worse, high) in itertools.combinations(means, 2):
        wins, losses = (int(of.sum()) for of in (columns[better] < columns[worse], columns[better] > columns[worse]))
        told = p is not None and p <= LEVEL and high - low > critical
        pairs.append(Pair(better, worse, wins, losses, sign_p(wins, losses), told))
    return Ranking(quantity, dict(means), n, p, critical, pairs)


def _ranks(rows: npt.ArrayLike) -> _Ranks:
    """Return the ranks of the numbers of each row, the lowest first; equal ones share the mean of theirs."""
    from scipy.stats import rankdata

    return np.asarray(rankdata(np.asarray(rows).round(_DIGITS), axis=1))


def _friedman(ranks: _Ranks) -> float | None:
    """The p of Friedman's test of ranks, [sets, searchers]; None with too few sets."""
    from scipy.stats import friedmanchisquare

    if len(ranks) < _FEWEST:
        return None
    return float(friedmanchisquare(*ranks.T).pvalue) if np.ptp(ranks) > 0 else 1.0  # all are equal throughout


@functools.cache  # a second or so
def _quantile(n_searchers: int) -> float:
    """The quantile of Nemenyi's test: the studentized range's, divided by the root of 2."""
    from scipy.stats import studentized_range

    return float(studentized_range.ppf(1 - LEVEL, n_searchers, np.inf)) / math.sqrt(2)
