"""Which calibration gives the better checkpoints: every two of them, paired by searcher or tested over draws."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from raysearch.reporting.stats.difference import LEVEL, Difference, Side, by_item, holm, of_mean, total
from raysearch.reporting.stats.frame import Panel, Quantity, by_own_luck, panels, tidy


@dataclass(frozen=True)
class CalibrationEffect:
    """Two calibrations beside each other, the better one first.

    Args:
        best: The calibration with the better mean over the searchers that have a result by both.
        gain: How much better, at least 0: the mean difference; the mean ratio, at least 1, of a quantity that is
            compared by ratios.
        low: Lower end of the 95 % interval of the gain; None with one searcher and draw.
        p: Corrected by Holm's method for the pairs of the panel. By Welch's test over draws, where each calibration has
            several, with the noise of the items, and without it as well; else by Wilcoxon's signed ranks over
            searchers, which holds for these samples and items. None if not known.
        n_better: How many of the searchers are better by the first.
        n_draws: The fewest draws of the two.
    """

    panel: Panel
    quantity: Quantity
    best: str
    second: str
    gain: float
    low: float | None
    high: float | None
    p: float | None
    n_searchers: int
    n_better: int
    n_draws: int

    @property
    def clear(self) -> bool:
        """Whether noise is rejected as the cause."""
        return self.p is not None and self.p <= LEVEL


def calibration_effects(frame: pd.DataFrame, quantity: Quantity) -> list[CalibrationEffect]:
    """Every two calibrations by a quantity, for each model and M; see `by_own_luck` for the searchers that count."""
    found = []
    for panel, cells in panels(by_own_luck(frame)):
        known = cells[cells[quantity.key].notna()]
        pairs = list(_pairs(panel, known, quantity))
        found += [replace(one, p=p) for one, p in zip(pairs, holm([one.p for one in pairs]), strict=True)]
    return found


def _pairs(panel: Panel, cells: pd.DataFrame, quantity: Quantity) -> Iterator[CalibrationEffect]:
    from scipy.stats import ttest_rel

    places = [cells[name] for name in ("calibration", "draw", "searcher")]
    by_draw = (quantity.sign * quantity.of(cells)).groupby(places, observed=True).mean()
    calibrations = cells["calibration"].drop_duplicates().sort_values()
    tables = {one: by_draw[one].unstack("searcher").dropna(axis="columns") for one in calibrations}
    found = cells.groupby(["calibration", "searcher"], observed=True)["removed"].agg(frozenset)
    # of a searcher with an unknown mask its name, so that it is like no other
    masks = {place: of if all(of) else place[1] for place, of in found.items()}
    for pair in itertools.combinations(tables, 2):
        common = tables[pair[0]].columns.intersection(tables[pair[1]].columns)
        if not len(common):
            continue
        best, second = sorted(pair, key=lambda one: -tables[one][common].to_numpy().mean())
        better, worse = tables[best][common], tables[second][common]
        by_searcher = better.mean() - worse.mean()
        gain, n_draws = tidy(float(by_searcher.mean())), min(len(better), len(worse))
        p, ends = None, (math.nan, math.nan)
        if n_draws > 1:
            mine = cells[cells["searcher"].isin(common)]
            items = by_item(*(Side(mine[mine["calibration"] == one], quantity) for one in (best, second)))
            draws = [of_mean(of.mean(axis=1).to_numpy()) for of in (better, worse)]
            noise = Difference(gain, n_draws, [total([*draws, *items]), total(draws)])
            p, half = noise.p, noise.half_width() or 0.0
            ends = gain - half, gain + half
        elif len(common) > 1:
            ends = ttest_rel(better.mean(), worse.mean()).confidence_interval(1 - LEVEL)
            alike = pd.Series([(masks[best, one], masks[second, one]) for one in common]).duplicated()
            gaps = tidy(by_searcher[~alike.to_numpy()]).to_numpy()
            p = signed_rank_p(gaps[gaps != 0])
        read = math.exp if quantity.ratio else float
        low, high = map(read, ends) if math.isfinite(ends[0]) else (None, None)
        n_better = int((by_searcher > 0).sum())
        yield CalibrationEffect(panel, quantity, best, second, read(gain), low, high, p, len(common), n_better, n_draws)


def signed_rank_p(gaps: npt.NDArray[np.float64]) -> float:
    """Return the two-sided p of Wilcoxon's signed ranks, of all 2^n signs; equal sizes share the mean of their ranks.

    Args:
        gaps: Differences other than 0, [n].
    """
    from scipy.stats import rankdata

    ranks = np.rint(2 * rankdata(np.abs(gaps))).astype(int)  # whole numbers, so few sums are possible
    shares = np.ones(1)  # of the signs, by the sum of the ranks of positive ones
    for rank in ranks:
        shares = (np.pad(shares, (0, rank)) + np.pad(shares, (rank, 0))) / 2
    middle = ranks.sum() / 2
    far = np.abs(np.arange(len(shares)) - middle) >= abs(ranks[gaps > 0].sum() - middle)
    return float(shares[far].sum())
