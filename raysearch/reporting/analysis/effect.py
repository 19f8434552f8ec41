"""Which calibration gives the better checkpoints: each pair of them, paired by searcher or tested over draws."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from raysearch.reporting.analysis.frame import Panel, Quantity, panels, with_own_seeds, without_rounding_errors
from raysearch.reporting.analysis.sides import Side, by_item
from raysearch.stats.difference import Difference, Variance, joint_error, variance_of_mean
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
        frame: The searches, see `cells_frame`. Only those of `with_own_seeds` count.
        quantity: The quantity.

    Returns:
        The effects, panel by panel.
    """
    effects = []
    for panel, cells in panels(with_own_seeds(frame)):
        measured = cells[cells[quantity.key].notna()]
        uncorrected = list(_pairs(panel, measured, quantity))
        corrected = holm([effect.p for effect in uncorrected])
        effects += [replace(effect, p=p) for effect, p in zip(uncorrected, corrected, strict=True)]
    return effects


def _pairs(panel: Panel, cells: pd.DataFrame, quantity: Quantity) -> Iterator[CalibrationEffect]:
    """Yield the comparison of each pair of calibrations with a common searcher; its p is not corrected."""
    places = [cells[name] for name in ("calibration", "draw", "searcher")]
    by_draw = (quantity.sign * quantity.values_of(cells)).groupby(places, observed=True).mean()
    calibrations = cells["calibration"].drop_duplicates().sort_values()
    tables = {name: by_draw[name].unstack("searcher").dropna(axis="columns") for name in calibrations}
    for pair in itertools.combinations(tables, 2):
        common = tables[pair[0]].columns.intersection(tables[pair[1]].columns)
        if not len(common):
            continue
        best, second = sorted(pair, key=lambda calibration: -tables[calibration][common].to_numpy().mean())
        better = tables[best][common]  # a row per draw, a column per searcher
        worse = tables[second][common]
        by_searcher = better.mean() - worse.mean()
        gain = without_rounding_errors(float(by_searcher.mean()))
        n_draws = min(len(better), len(worse))
        if n_draws > 1:
            shared = cells[cells["searcher"].isin(common)]
            sides = (Side(shared[shared["calibration"] == name], quantity) for name in (best, second))
            test = _test_over_draws(gain, better, worse, by_item(*sides))
        elif len(common) > 1:
            test = _test_over_searchers(better.mean(), worse.mean(), _are_distinct(cells, best, second, common))
        else:
            test = _Test(None)
        has_interval = math.isfinite(test.low)
        as_gain = math.exp if quantity.ratio else float
        yield CalibrationEffect(
            panel=panel,
            quantity=quantity,
            best=best,
            second=second,
            gain=as_gain(gain),
            low=as_gain(test.low) if has_interval else None,
            high=as_gain(test.high) if has_interval else None,
            p=test.p,
            n_searchers=len(common),
            n_better=int((by_searcher > 0).sum()),
            n_draws=n_draws,
        )


class _Test(NamedTuple):
    """The p of a test that two calibrations do not differ, and both ends of the interval of their difference.

    The p is None, and the ends are NaN, if they are not known.
    """

    p: float | None
    low: float = math.nan
    high: float = math.nan


def _test_over_draws(
    gain: float, better: pd.DataFrame, worse: pd.DataFrame, item_variances: Sequence[Variance]
) -> _Test:
    """Compare the means of draws by Welch's test, with and without the noise of the items."""
    draw_variances = [variance_of_mean(table.mean(axis=1).to_numpy()) for table in (better, worse)]
    errors = [joint_error([*draw_variances, *item_variances]), joint_error(draw_variances)]
    difference = Difference(gain, min(len(better), len(worse)), errors)
    half_width = difference.half_width() or 0.0
    return _Test(difference.p, gain - half_width, gain + half_width)


def _test_over_searchers(better: pd.Series, worse: pd.Series, is_distinct: npt.NDArray[np.bool_]) -> _Test:
    """Compare searchers by Wilcoxon's signed ranks, with Student's interval.

    Args:
        better: The mean of each searcher on the better calibration.
        worse: The same on the other calibration.
        is_distinct: Whether no earlier searcher found the same masks; only such searchers are ranked.
    """
    from scipy.stats import ttest_rel

    gaps = without_rounding_errors((better - worse)[is_distinct]).to_numpy()
    low, high = ttest_rel(better, worse).confidence_interval(1 - LEVEL)
    return _Test(signed_rank_p(gaps[gaps != 0]), low, high)


def _are_distinct(cells: pd.DataFrame, first: str, second: str, searchers: pd.Index) -> npt.NDArray[np.bool_]:
    """Return for each searcher whether no earlier one found the same masks on two calibrations.

    A searcher with an unknown mask is represented by its name, so that it equals no other searcher.
    """
    removed = cells.groupby(["calibration", "searcher"], observed=True)["removed"].agg(frozenset)
    masks: dict[tuple[str, str], frozenset[Any] | str] = {}
    for (calibration, searcher), layers in removed.items():
        is_known = all(layers)
        masks[calibration, searcher] = layers if is_known else searcher
    pairs = pd.Series([(masks[first, searcher], masks[second, searcher]) for searcher in searchers])
    return ~pairs.duplicated().to_numpy()
