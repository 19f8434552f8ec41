"""How much of a result is the calibration's doing, how much the searcher's: analysis of variance, and plain spreads.

Only what all calibrations share is split: averages of assessed metrics. A calibration's own loss has its own unit, so
losses of two calibrations are never put on one scale. Searchers that do not use the objective find the same mask by
every objective, which would dilute the calibration's share; they are left out.

Several draws of a calibration are a random factor nested in it: a calibration is compared with another by how far its
own draws differ, a searcher by how far searchers change places from draw to draw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from raysearch.core.json import finite
from raysearch.reporting.stats.frame import Panel, Quantity, mean_of, panels

#: What statsmodels calls the parts of the variance.
_PARTS = {
    "C(calibration)": "calibration",
    "C(searcher)": "searcher",
    "C(calibration):C(searcher)": "interaction",
    "Residual": "residual",
}


#: Shares of a variance, together 1: ``calibration``, ``searcher``, and the rest as ``residual``. Where it is told from
#: the rest also ``interaction``, what one calibration does to one searcher alone; with several draws also ``draw``.
Shares = Mapping[str, float]


@dataclass(frozen=True)
class Split:
    """Shares of the variance of one quantity among the searches of one model and M.

    Args:
        quantity: Of what; perplexities enter by their logarithm.
        shares: Omega squared: what is left of sums of squares after noise. Source: Hays, Statistics, 1963.
        raw: Eta squared: sums of squares over their sum. They favour the factor with more levels.
        intervals: The 95 % interval of each share in `shares` that is tested, by its name. From the noncentral F
            distribution, the other components held.
        p: Of the F tests that calibrations, and searchers, do not differ; None without a residual to test against.
        stable: Whether the larger of the two shares stays the larger whichever searcher is left out; None with fewer
            than three.
        n_searchers: How many searchers have a result by every calibration and draw; others are left out.
        n_draws: Of all calibrations together.
    """

    panel: Panel
    quantity: Quantity
    shares: Shares
    raw: Shares
    intervals: Mapping[str, tuple[float, float]]
    p: Mapping[str, float | None]
    stable: bool | None
    n_searches: int
    n_searchers: int
    n_calibrations: int
    n_draws: int

    @property
    def title(self) -> str:
        """The name of the quantity that was split: ``log average perplexity``."""
        return f"{'log ' if self.quantity.ratio else ''}{self.quantity.title}"

    @property
    def drawn(self) -> bool:
        """Whether some calibration has several draws, so that a calibration is told from its samples."""
        return self.n_draws > self.n_calibrations


@dataclass(frozen=True)
class Spread:
    """The largest difference that one choice makes while the other is held fixed.

    Args:
        by: Which choice is changed.
        fixed: The label of the other.
        size: The difference between the best and the worst; their ratio where the quantity is compared by ratios.
    """

    panel: Panel
    quantity: Quantity
    by: str
    fixed: str
    size: float


def splits(frame: pd.DataFrame, quantities: Sequence[Quantity]) -> list[Split]:
    """Split each quantity's variance for each model and M with at least two calibrations and two searchers.

    Where calibrations have several draws, a searcher counts by its mean over seeds, and the draws are nested: the F
    test of the calibration is against the draws, the others against searchers times draws. With one draw, by ordinary
    least squares with treatment contrasts and type II sums of squares: ``value ~ calibration * searcher`` where some
    searcher has several seeds by every calibration, else ``value ~ calibration + searcher``.
    """
    found = []
    for panel, cells in panels(frame[frame["uses_objective"]]):
        found += [split for quantity in quantities if (split := _split(panel, cells, quantity))]
    return found


def spreads(frame: pd.DataFrame, quantity: Quantity) -> list[Spread]:
    """For each model and M the most that calibrations differ by at a fixed searcher, and searchers at a calibration.

    Source: Kim et al. 2026 (arXiv 2604.24938), section 5.2.
    """
    found = []
    for panel, cells in panels(frame):
        means = cells.pivot_table(quantity.key, "searcher", "calibration", partial(mean_of, quantity), observed=True)
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
    shares = _omega(table, len(data))
    return Split(
        panel=panel,
        quantity=quantity,
        shares=shares,
        raw=(table["sum_sq"] / table["sum_sq"].sum()).to_dict(),
        intervals=_intervals(table, shares, len(data)),
        p={name: finite(table["p"][name]) for name in ("calibration", "searcher")},
        stable=_is_stable(data, shares),
        n_searches=len(data),
        n_searchers=n_searchers,
        n_calibrations=n_calibrations,
        n_draws=len(data[["calibration", "draw"]].drop_duplicates()),
    )


def _analysis_of_variance(data: pd.DataFrame) -> pd.DataFrame:
    """The sums of squares, degrees of freedom, F, p, and the mean square that each effect is tested against."""
    drawn = len(data[["calibration", "draw"]].drop_duplicates()) > data["calibration"].nunique()
    table = _nested_sums(data) if drawn else _crossed_sums(data)
    mean_squares = table["sum_sq"] / table["df"].where(table["df"] > 0)
    against = pd.Series("residual", table.index)
    if drawn:
        against["calibration"] = "draw"
    table["error"], table["error_df"] = mean_squares[against].to_numpy(), table["df"][against].to_numpy()
    with np.errstate(divide="ignore", invalid="ignore"):  # where nothing is left to test against
        table["F"] = mean_squares / table["error"]
    from scipy.stats import f

    table["p"] = f.sf(table["F"], table["df"], table["error_df"])
    return table


def _nested_sums(data: pd.DataFrame) -> pd.DataFrame:
    """The sums of squares of calibrations, their draws, searchers and both, where each searcher has one value a draw.

    Searchers are complete in every draw, so the parts are orthogonal, however many draws a calibration has.
    """
    values, mean = data["value"], data["value"].mean()
    numbers = {name: pd.factorize(data[name])[0] for name in ("calibration", "draw", "searcher")}  # quicker than texts

    def explained(*by: str) -> float:
        means = values.groupby([numbers[name] for name in by]).transform("mean")
        return float(((means - mean) ** 2).sum())

    n_calibrations, n_searchers = data["calibration"].nunique(), data["searcher"].nunique()
    calibration, searcher, draws = explained("calibration"), explained("searcher"), explained("calibration", "draw")
    both = explained("calibration", "searcher")
    n_draws = len(data) // n_searchers
    sums = {
        "calibration": (calibration, n_calibrations - 1),
        "draw": (draws - calibration, n_draws - n_calibrations),
        "searcher": (searcher, n_searchers - 1),
        "interaction": (both - calibration - searcher, (n_calibrations - 1) * (n_searchers - 1)),
        "residual": (
            explained("calibration", "draw", "searcher") - draws - both + calibration,
            (n_draws - n_calibrations) * (n_searchers - 1),
        ),
    }
    return pd.DataFrame.from_dict(sums, orient="index", columns=["sum_sq", "df"]).clip(lower=0.0)


def _crossed_sums(data: pd.DataFrame) -> pd.DataFrame:
    """The sums of squares, type II, of calibrations and searchers, and of both where there are several seeds."""
    from statsmodels.formula.api import ols
    from statsmodels.stats.anova import anova_lm

    seeded = len(data) > len(data[["calibration", "searcher"]].drop_duplicates())
    formula = f"value ~ C(calibration) {'*' if seeded else '+'} C(searcher)"
    with np.errstate(divide="ignore", invalid="ignore"):
        return pd.DataFrame(anova_lm(ols(formula, data=data).fit(), typ=2)[["sum_sq", "df"]]).rename(_PARTS)


def _components(table: pd.DataFrame, n: int) -> pd.Series:
    """The variance that each part adds to one value beyond noise, at least 0."""
    noise = table["error"].fillna(0.0) * table["df"]
    parts = ((table["sum_sq"] - noise) / n).clip(lower=0.0)
    parts["residual"] = np.nan_to_num(table["error"]["residual"])
    if "draw" in parts:  # a random factor: its variance, not that of the draws at hand
        parts["draw"] *= n / (table["df"]["draw"] * (table["df"]["searcher"] + 1))
    return parts


def _omega(table: pd.DataFrame, n: int) -> Shares:
    parts = _components(table, n)
    if not parts.sum():
        parts = table["sum_sq"]
    return (parts / parts.sum()).to_dict()


def _intervals(table: pd.DataFrame, shares: Shares, n: int) -> dict[str, tuple[float, float]]:
    """Intervals of the shares that are tested, by the noncentrality of their F."""
    from statsmodels.stats.oneway import confint_noncentrality

    parts = _components(table, n)
    found = {}
    for name in ("calibration", "searcher", "interaction"):
        if name in table.index and np.isfinite(table["F"][name]) and table["error"][name] > 0:
            freedom = table["df"][name], table["error_df"][name]
            ends = confint_noncentrality(table["F"][name], freedom, alpha=0.05)
            own = np.nan_to_num(np.asarray(ends)) * table["error"][name] / n
            low, high = own / (parts.sum() - parts[name] + own)
            found[name] = float(min(low, shares[name])), float(max(high, shares[name]))
    return found


def _is_stable(data: pd.DataFrame, shares: Shares) -> bool | None:
    searchers = data["searcher"].unique()
    if len(searchers) < 3:
        return None
    larger = shares["calibration"] > shares["searcher"]
    rest = (data[data["searcher"] != name] for name in searchers)
    without = (_omega(_analysis_of_variance(some), len(some)) for some in rest)
    return all((one["calibration"] > one["searcher"]) == larger for one in without)


def _complete(cells: pd.DataFrame, quantity: Quantity) -> pd.DataFrame:
    """The searches of the searchers that have a result by every calibration and draw, so that nothing is empty."""
    known = cells[cells[quantity.key].notna()]
    data = known[["calibration", "draw", "searcher"]].astype(str)
    data["value"] = np.log(known[quantity.key]) if quantity.ratio else known[quantity.key]
    places = data["calibration"] + "\0" + data["draw"]
    complete = data[places.groupby(data["searcher"]).transform("nunique") == places.nunique()]
    if places.nunique() == data["calibration"].nunique():
        return complete
    return complete.groupby(["calibration", "draw", "searcher"], as_index=False)["value"].mean()
