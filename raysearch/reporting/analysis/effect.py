"""Which calibration gives the better checkpoints: each pair of them, paired by searcher or tested over draws."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pandas as pd

from raysearch.reporting.analysis.frame import Panel, Quantity, by_own_luck, panels, tidy
from raysearch.reporting.analysis.sides import Side, by_item
from raysearch.stats.difference import Difference, joint_error, variance_of_mean
from raysearch.stats.paired import signed_rank_p
from raysearch.stats.significance import LEVEL, holm


@dataclass(frozen=True)
class CalibrationEffect:
    """The comparison of two calibrations, the better one first.

    Args:
        panel: The model and M.
        quantity: The quantity by which they are compared.
        best: The calibration with the better mean over the searchers that have a result on both.
        second: The other calibration.
        gain: By how much the first is better: the mean difference, at least 0; for a quantity that is compared by
            ratios the mean ratio, at least 1.
        low: The lower end of the 95 % interval of the gain; None with one searcher and draw.
        high: The upper end of the interval.
        p: The p of the test of no difference, corrected by Holm's method for the pairs of the panel. If each
            calibration has several draws, the larger p of Welch's tests over draws with and without the noise of the
            items. Else Wilcoxon's signed ranks over searchers, which hold for these samples and items alone. None if
            it is not known.
        n_searchers: The number of searchers that have a result on both.
        n_better: The number of those searchers that are better on the first.
        n_draws: The number of draws of the calibration with fewer draws.
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
    """Return the comparison of each pair of calibrations by a quantity, for each model and M.

    Args:
        frame: The searches, see `cells_frame`. Only those of `by_own_luck` count.
        quantity: The quantity.
    """
    effects = []
    for panel, cells in panels(by_own_luck(frame)):
        measured = cells[cells[quantity.key].notna()]
        uncorrected = list(_pairs(panel, measured, quantity))
        corrected = holm([effect.p for effect in uncorrected])
        effects += [replace(effect, p=p) for effect, p in zip(uncorrected, corrected, strict=True)]
    return effects


def _pairs(panel: Panel, cells: pd.DataFrame, quantity: Quantity) -> Iterator[CalibrationEffect]:
    from scipy.stats import ttest_rel

    places = [cells[name] for name in ("calibration", "draw", "searcher")]
    by_draw = (quantity.sign * quantity.values_of(cells)).groupby(places, observed=True).mean()
    calibrations = cells["calibration"].drop_duplicates().sort_values()
    tables = {name: by_draw[name].unstack("searcher").dropna(axis="columns") for name in calibrations}
    removed = cells.groupby(["calibration", "searcher"], observed=True)["removed"].agg(frozenset)
    # a searcher with an unknown mask is represented by its name, so that it equals no other searcher
    masks = {place: of_searcher if all(of_searcher) else place[1] for place, of_searcher in removed.items()}
    for pair in itertools.combinations(tables, 2):
        common = tables[pair[0]].columns.intersection(tables[pair[1]].columns)
        if not len(common):
            continue
        best, second = sorted(pair, key=lambda calibration: -tables[calibration][common].to_numpy().mean())
        better = tables[best][common]
        worse = tables[second][common]
        by_searcher = better.mean() - worse.mean()
        gain = tidy(float(by_searcher.mean()))
        n_draws = min(len(better), len(worse))
        p = None
        ends = (math.nan, math.nan)
        if n_draws > 1:
            shared = cells[cells["searcher"].isin(common)]
            items = by_item(*(Side(shared[shared["calibration"] == name], quantity) for name in (best, second)))
            draws = [variance_of_mean(table.mean(axis=1).to_numpy()) for table in (better, worse)]
            noise = Difference(gain, n_draws, [joint_error([*draws, *items]), joint_error(draws)])
            p = noise.p
            half_width = noise.half_width() or 0.0
            ends = (gain - half_width, gain + half_width)
        elif len(common) > 1:
            ends = ttest_rel(better.mean(), worse.mean()).confidence_interval(1 - LEVEL)
            mask_pairs = pd.Series([(masks[best, searcher], masks[second, searcher]) for searcher in common])
            gaps = tidy(by_searcher[~mask_pairs.duplicated().to_numpy()]).to_numpy()
            p = signed_rank_p(gaps[gaps != 0])
        as_gain = math.exp if quantity.ratio else float
        low, high = map(as_gain, ends) if math.isfinite(ends[0]) else (None, None)
        yield CalibrationEffect(
            panel=panel,
            quantity=quantity,
            best=best,
            second=second,
            gain=as_gain(gain),
            low=low,
            high=high,
            p=p,
            n_searchers=len(common),
            n_better=int((by_searcher > 0).sum()),
            n_draws=n_draws,
        )
