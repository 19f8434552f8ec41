"""How much of a result is the calibration's doing, how much the searcher's: analysis of variance, and plain spreads.

Only what all calibrations share is split: averages of assessed metrics. A calibration's own loss has its own unit, so
losses of two calibrations are never put on one scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from raysearch.core.json import finite
from raysearch.reporting.stats.frame import Panel, Quantity, crossed, panels

_CALIBRATION, _SEARCHER = "C(calibration)", "C(searcher)"
_INTERACTION = f"{_CALIBRATION}:{_SEARCHER}"


@dataclass(frozen=True)
class Split:
    """Shares of the variance of one quantity among the searches of one model and M.

    Args:
        panel: Of which model and M.
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

    panel: Panel
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

    @property
    def title(self) -> str:
        """The name of the quantity that was split: ``log average perplexity``."""
        return f"{'log ' if self.quantity.ratio else ''}{self.quantity.title}"


@dataclass(frozen=True)
class Spread:
    """The largest difference that one choice makes while the other is held fixed.

    Args:
        panel: Of which model and M.
        quantity: Of what.
        by: Which choice is changed.
        fixed: The label of the other.
        size: The difference between the best and the worst, in the quantity's unit; their ratio where it is compared
            by ratios.
    """

    panel: Panel
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
    for panel, cells in panels(frame):
        splits_ = (_split(panel, cells, quantity) for quantity in quantities)
        found += [split for split in splits_ if split is not None]
    return found


def spreads(frame: pd.DataFrame, quantity: Quantity) -> list[Spread]:
    """For each model and M the most that calibrations differ by at a fixed searcher, and searchers at a calibration.

    Source: Kim et al. 2026 (arXiv 2604.24938), section 5.2.
    """
    found = []
    for panel, means in crossed(frame, quantity):
        for by, table in (("calibration", means), ("searcher", means.T)):
            several = table[table.count(axis=1) > 1]
            high, low = several.max(axis=1), several.min(axis=1)
            sizes = high / low if quantity.ratio else high - low
            if len(sizes):
                found.append(Spread(panel, quantity, by, sizes.idxmax(), float(sizes.max())))
    return found


def _split(panel: Panel, cells: pd.DataFrame, quantity: Quantity) -> Split | None:
    data = _complete(cells, quantity)
    n_calibrations, n_searchers = data["calibration"].nunique(), data["searcher"].nunique()
    values = data["value"]
    if n_calibrations < 2 or n_searchers < 2 or np.ptp(values) <= 1e-12 * np.abs(values).max():
        return None
    table = _analysis_of_variance(data)
    squares, tests = table["share"], table["PR(>F)"]
    seeded = _INTERACTION in squares
    return Split(
        panel=panel,
        quantity=quantity,
        calibration=float(squares[_CALIBRATION]),
        searcher=float(squares[_SEARCHER]),
        interaction=float(squares[_INTERACTION]) if seeded else None,
        residual=float(squares["Residual"]),
        p_calibration=finite(tests[_CALIBRATION]),
        p_searcher=finite(tests[_SEARCHER]),
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
    searchers = data["searcher"].unique()
    if len(searchers) < 3:
        return None
    without = [_analysis_of_variance(data[data["searcher"] != name])["share"] for name in searchers]
    return len({bool(of[_CALIBRATION] > of[_SEARCHER]) for of in (shares, *without)}) == 1


def _complete(cells: pd.DataFrame, quantity: Quantity) -> pd.DataFrame:
    """The searches of the searchers that have a result by every calibration, so that no combination is empty."""
    known = cells[cells[quantity.key].notna()]
    data = known[["calibration", "searcher"]].astype(str)
    data["value"] = np.log(known[quantity.key]) if quantity.ratio else known[quantity.key]
    seen = data.groupby("searcher")["calibration"].transform("nunique")
    return data[seen == data["calibration"].nunique()]
