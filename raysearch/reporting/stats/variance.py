"""How much of a result is the calibration's doing, how much the searcher's: analysis of variance, and plain spreads.

Only what all calibrations share is split: averages of assessed metrics. A calibration's own loss has its own unit, so
losses of two calibrations are never put on one scale.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from raysearch.reporting.stats.comparison import summarise
from raysearch.reporting.stats.frame import Quantity, calibrations_of, searchers_of, settings

_CALIBRATION, _SEARCHER = "C(calibration)", "C(searcher)"
_INTERACTION = f"{_CALIBRATION}:{_SEARCHER}"


@dataclass(frozen=True)
class Split:
    """Shares of the variance of one quantity among the searches of one model and M.

    Args:
        model: Of which model.
        remove: M.
        quantity: Of what; perplexities enter by their logarithm.
        calibration: Share of the calibration, eta squared.
        searcher: Share of the searcher.
        interaction: Share of what one calibration does to one searcher alone; None without a second seed, when it
            cannot be told from noise and both are the residual.
        residual: The rest: the seeds', or without them the interaction's and the noise's.
        p_calibration: Of the F test that calibrations do not differ; None without a residual to test against.
        p_searcher: The same of searchers.
        stable: Whether the larger of the two shares stays the larger whichever searcher is left out; None with fewer
            than three.
        n_searches: How many went in.
        n_searchers: How many searchers have a result by every calibration; others are left out.
        n_calibrations: How many.
    """

    model: str
    remove: int
    quantity: Quantity
    calibration: float
    searcher: float
    interaction: float | None
    residual: float
    p_calibration: float | None
    p_searcher: float | None
    stable: bool | None
    n_searches: int
    n_searchers: int
    n_calibrations: int


@dataclass(frozen=True)
class Spread:
    """The largest difference that one choice makes while the other is held fixed.

    Args:
        model: Of which model.
        remove: M.
        quantity: Of what.
        by: Which choice is changed.
        fixed: The label of the other.
        size: The difference between the best and the worst, in the quantity's unit; their ratio where it is compared
            by ratios.
    """

    model: str
    remove: int
    quantity: Quantity
    by: str
    fixed: str
    size: float


def splits(frame: pd.DataFrame, quantities: Sequence[Quantity]) -> list[Split]:
    """Splits each quantity's variance for each model and M with at least two calibrations and two searchers.

    By ordinary least squares with treatment contrasts and type II sums of squares: ``value ~ calibration * searcher``
    where some searcher has several seeds by every calibration, else ``value ~ calibration + searcher``. Shares are
    sums of squares over the sum of all of them.
    """
    found = []
    for (model, remove), cells in _panels(frame):
        for quantity in quantities:
            split = _split(model, remove, cells, quantity)
            if split is not None:
                found.append(split)
    return found


def spreads(frame: pd.DataFrame, quantity: Quantity) -> list[Spread]:
    """For each model and M the most that calibrations differ by at a fixed searcher, and searchers at a calibration.

    Source: Kim et al. 2026 (arXiv 2604.24938), section 5.2.
    """
    means = {
        (setting, one.searcher): one.mean for setting, cells in settings(frame) for one in summarise(cells, quantity)
    }
    panels = dict.fromkeys((setting.model, setting.remove) for setting, _ in means)
    found = []
    for (model, remove), by in itertools.product(panels, ("calibration", "searcher")):
        table: dict[str, list[float]] = {}
        for (setting, searcher), value in means.items():
            if (setting.model, setting.remove) == (model, remove):
                table.setdefault(searcher if by == "calibration" else setting.calibration, []).append(value)
        sizes = {label: _range(values, quantity) for label, values in table.items() if len(values) > 1}
        if sizes:
            fixed = max(sizes, key=lambda label: sizes[label])
            found.append(Spread(model, remove, quantity, by, fixed, sizes[fixed]))
    return found


def _range(values: Sequence[float], quantity: Quantity) -> float:
    return max(values) / min(values) if quantity.ratio else max(values) - min(values)


def _panels(frame: pd.DataFrame) -> list[tuple[tuple[str, int], pd.DataFrame]]:
    parts: dict[tuple[str, int], list[pd.DataFrame]] = {}
    for setting, cells in settings(frame):
        parts.setdefault((setting.model, setting.remove), []).append(cells)
    return [(key, pd.concat(cells)) for key, cells in parts.items()]


def _split(model: str, remove: int, cells: pd.DataFrame, quantity: Quantity) -> Split | None:
    data = _complete(cells[cells[quantity.key].notna()], quantity)
    n_calibrations, n_searchers = data["calibration"].nunique(), data["searcher"].nunique()
    values = data["value"].to_numpy(dtype=float)
    if n_calibrations < 2 or n_searchers < 2 or np.ptp(values) <= 1e-12 * np.abs(values).max():
        return None
    table = _analysis_of_variance(data)
    squares, tests = table["share"], table["PR(>F)"]
    seeded = _INTERACTION in squares
    return Split(
        model=model,
        remove=remove,
        quantity=quantity,
        calibration=float(squares[_CALIBRATION]),
        searcher=float(squares[_SEARCHER]),
        interaction=float(squares[_INTERACTION]) if seeded else None,
        residual=float(squares["Residual"]),
        p_calibration=_known(tests[_CALIBRATION]),
        p_searcher=_known(tests[_SEARCHER]),
        stable=_is_stable(data, squares),
        n_searches=len(data),
        n_searchers=n_searchers,
        n_calibrations=n_calibrations,
    )


def _analysis_of_variance(data: pd.DataFrame) -> pd.DataFrame:
    """The table of an analysis of variance, type II, with each sum of squares as a share of them all."""
    from statsmodels.formula.api import ols
    from statsmodels.stats.anova import anova_lm

    seeded = len(data) > len(data[["calibration", "searcher"]].drop_duplicates())
    formula = f"value ~ {_CALIBRATION} {'*' if seeded else '+'} {_SEARCHER}"
    with np.errstate(divide="ignore", invalid="ignore"):  # where nothing is left to test against
        table = anova_lm(ols(formula, data=data).fit(), typ=2)
    table["share"] = table["sum_sq"] / table["sum_sq"].sum()
    return table


def _is_stable(data: pd.DataFrame, shares: pd.Series) -> bool | None:
    searchers = searchers_of(data)
    if len(searchers) < 3:
        return None
    without = [_analysis_of_variance(data[data["searcher"] != name])["share"] for name in searchers]
    return len({bool(of[_CALIBRATION] > of[_SEARCHER]) for of in (shares, *without)}) == 1


def _complete(cells: pd.DataFrame, quantity: Quantity) -> pd.DataFrame:
    """The searches of the searchers that have a result by every calibration, so that no combination is empty."""
    everywhere = len(calibrations_of(cells))
    kept = [
        name
        for name in searchers_of(cells)
        if cells.loc[cells["searcher"] == name, "calibration"].nunique() == everywhere
    ]
    data = cells.loc[cells["searcher"].isin(kept), ["calibration", "searcher"]].copy()
    values = cells.loc[data.index, quantity.key].astype(float)
    data["value"] = values.map(math.log) if quantity.ratio else values
    return data


def _known(number: float) -> float | None:
    return float(number) if math.isfinite(number) else None
