"""Which calibration gives the better checkpoints: every two of them, paired by searcher or told apart by their draws.

Searchers that do not use the objective find the same mask by every calibration, and are left out, and so are those
whose luck is the same in several draws (`by_own_luck`).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from raysearch.reporting.stats.difference import LEVEL, Difference, Side, by_item, holm, total
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
    def clear(self) -> bool | None:
        """Whether noise is rejected as the cause; None if there is no test."""
        return None if self.p is None else self.p <= LEVEL


def calibration_effects(frame: pd.DataFrame, quantity: Quantity) -> list[CalibrationEffect]:
    """Every two calibrations by a quantity, for each model and M."""
    found = []
    for panel, cells in panels(by_own_luck(frame)):
        known = cells[cells[quantity.key].notna()]
        pairs = list(_pairs(panel, known, quantity))
        found += [replace(one, p=p) for one, p in zip(pairs, holm([one.p for one in pairs]), strict=True)]
    return found


def _pairs(panel: Panel, cells: pd.DataFrame, quantity: Quantity) -> Iterator[CalibrationEffect]:
    places = [cells[name] for name in ("calibration", "draw", "searcher")]
    by_draw = (quantity.sign * quantity.of(cells)).groupby(places, observed=True).mean()
    calibrations = cells["calibration"].drop_duplicates().sort_values()
    tables = {one: by_draw[one].unstack("searcher").dropna(axis="columns") for one in calibrations}
    found = cells.groupby(["calibration", "searcher"], observed=True)["removed"].agg(frozenset)
    # of a searcher with an unknown mask its name, so that it is like no other
    masks = {place: of if all(of) else place[1] for place, of in found.items()}

    @functools.cache
    def side(calibration: str, searchers: tuple[str, ...]) -> Side:
        return Side(cells[(cells["calibration"] == calibration) & cells["searcher"].isin(searchers)], quantity)

    for pair in itertools.combinations(tables, 2):
        common = tables[pair[0]].columns.intersection(tables[pair[1]].columns)
        if len(common):
            best, second = sorted(pair, key=lambda one: -tables[one][common].to_numpy().mean())
            both = [(masks[best, one], masks[second, one]) for one in common]
            distinct = np.array([of not in both[:place] for place, of in enumerate(both)])
            items = by_item(side(best, tuple(common)), side(second, tuple(common)))
            yield _effect(panel, quantity, best, second, tables[best][common], tables[second][common], distinct, items)


def _effect(
    panel: Panel,
    quantity: Quantity,
    best: str,
    second: str,
    better: pd.DataFrame,
    worse: pd.DataFrame,
    distinct: npt.NDArray[np.bool_],
    items: Sequence[tuple[float, float]],
) -> CalibrationEffect:
    """Compare two tables of scores, draws down and searchers across; more is better.

    Only `distinct` searchers, which have no other's masks on both sides, enter the test over searchers. `items` are the
    variances of the gain by the choice of items, with their degrees of freedom.
    """
    from scipy.stats import ttest_rel

    by_searcher = better.mean() - worse.mean()
    n_draws = min(len(better), len(worse))
    p, ends = None, (math.nan, math.nan)
    gain = tidy(float(by_searcher.mean()))
    if n_draws > 1:
        by_draw = better.mean(axis=1), worse.mean(axis=1)
        draws = [(float(means.var()) / len(means), len(means) - 1.0) for means in by_draw]
        noise = Difference(gain, *total([*draws, *items]), n_draws, alone=total(draws))
        p, half = noise.p, noise.half_width() or 0.0
        ends = gain - half, gain + half
    elif len(by_searcher) > 1:
        ends = ttest_rel(better.mean(), worse.mean()).confidence_interval(1 - LEVEL)
        gaps = tidy(by_searcher[distinct]).to_numpy()
        p = signed_rank_p(gaps[gaps != 0])
    read = math.exp if quantity.ratio else float
    low, high = map(read, ends) if math.isfinite(ends[0]) else (None, None)
    return CalibrationEffect(
        panel=panel,
        quantity=quantity,
        best=best,
        second=second,
        gain=read(gain),
        low=low,
        high=high,
        p=p,
        n_searchers=len(by_searcher),
        n_better=int((by_searcher > 0).sum()),
        n_draws=n_draws,
    )


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
