"""Which calibration gives the better checkpoints: every two of them, paired by searcher or told apart by their draws.

Searchers that do not use the objective find the same mask by every calibration, and are left out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from raysearch.reporting.stats.difference import LEVEL, holm
from raysearch.reporting.stats.frame import Panel, Quantity, panels

_DIGITS = 12  # that differences must have in common to be tied


@dataclass(frozen=True)
class CalibrationEffect:
    """Two calibrations beside each other, the better one first.

    Args:
        panel: Of which model and M.
        quantity: By what.
        best: The calibration with the better mean over the searchers that have a result by both.
        second: The other one.
        gain: How much better, at least 0: the mean difference; the mean ratio, at least 1, of a quantity that is
            compared by ratios.
        low: Lower end of Student's 95 % interval of the gain; None with one searcher and draw.
        high: Its upper end.
        p: Corrected by Holm's method for the pairs of the panel. By Welch's test over draws, where each calibration has
            several; else by Wilcoxon's signed ranks over searchers, which holds for these samples. None if not known.
        n_searchers: How many searchers are compared.
        n_better: How many of them are better by the first.
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
    for panel, cells in panels(frame[frame["uses_objective"]]):
        known = cells[cells[quantity.key].notna()]
        pairs = list(_pairs(panel, known, quantity))
        found += [replace(one, p=p) for one, p in zip(pairs, holm([one.p for one in pairs]), strict=True)]
    return found


def _pairs(panel: Panel, cells: pd.DataFrame, quantity: Quantity) -> Iterator[CalibrationEffect]:
    values = quantity.sign * (np.log(cells[quantity.key]) if quantity.ratio else cells[quantity.key])
    by_draw = values.groupby([cells["calibration"], cells["draw"], cells["searcher"]], observed=True).mean()
    masks = {key: frozenset(of) for key, of in cells.groupby(["calibration", "searcher"], observed=True)["removed"]}
    calibrations = cells["calibration"].drop_duplicates().sort_values()
    tables = {one: by_draw[one].unstack("searcher").dropna(axis="columns") for one in calibrations}
    for pair in itertools.combinations(tables, 2):
        common = tables[pair[0]].columns.intersection(tables[pair[1]].columns)
        if len(common):
            best, second = sorted(pair, key=lambda one: -tables[one][common].to_numpy().mean())
            distinct = [(masks[best, one], masks[second, one]) for one in common]
            yield _effect(panel, quantity, best, second, tables[best][common], tables[second][common], distinct)


def _effect(
    panel: Panel,
    quantity: Quantity,
    best: str,
    second: str,
    better: pd.DataFrame,
    worse: pd.DataFrame,
    masks: Sequence[tuple[frozenset[tuple[int, ...]], ...]],
) -> CalibrationEffect:
    """Compare two tables of scores, draws down and searchers across; more is better.

    Searchers with the same masks on both sides are one in the test over searchers.
    """
    from scipy.stats import ttest_ind, ttest_rel, wilcoxon

    by_searcher = better.mean() - worse.mean()
    has_masks = np.array([all(all(one) for one in pair) for pair in masks])
    distinct = ~(pd.Series(masks, by_searcher.index).duplicated() & has_masks)
    n_draws = min(len(better), len(worse))
    p, low, high = math.nan, math.nan, math.nan
    gain = float(by_searcher.mean())
    if n_draws > 1:
        test = ttest_ind(better.mean(axis=1), worse.mean(axis=1), equal_var=False)
        low, high = test.confidence_interval(1 - LEVEL)
        p = float(test.pvalue)
    elif len(by_searcher) > 1:
        low, high = ttest_rel(better.mean(), worse.mean()).confidence_interval(1 - LEVEL)
        gaps = np.round(by_searcher[distinct & (by_searcher != 0)], _DIGITS)
        method = "exact" if gaps.abs().is_unique else "asymptotic"  # of ties scipy resamples, which takes seconds
        p = float(wilcoxon(gaps, method=method).pvalue) if len(gaps) else 1.0
    read = math.exp if quantity.ratio else float
    is_known = math.isfinite(low)
    return CalibrationEffect(
        panel=panel,
        quantity=quantity,
        best=best,
        second=second,
        gain=read(gain),
        low=read(low) if is_known else None,
        high=read(high) if is_known else None,
        p=None if math.isnan(p) else p,
        n_searchers=len(by_searcher),
        n_better=int((by_searcher > 0).sum()),
        n_draws=n_draws,
    )
