"""How much a result varies with the calibration and with the searcher: analysis of variance, and plain spreads.

Only averages of assessed metrics are split, since all calibrations share them. The unit of a loss depends on the
calibration, so losses of two calibrations are never put on one scale. Searchers that do not use the objective are left
out, since they would dilute the calibration's share. Searchers with the same random numbers in several draws are left
out, too (`with_own_seeds`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pandas as pd

from raysearch.core.json import finite
from raysearch.reporting.analysis.frame import Panel, Quantity, mean_of, panels, with_own_seeds
from raysearch.stats.difference import Difference, joint_error, variance_of_mean
from raysearch.stats.significance import holm

_Numbers = npt.NDArray[np.float64]
RESAMPLES = 9999
_DUST = 1e-9  # relative; differences below it come from the order of additions

#: Shares of a variance, together 1: ``calibration``, ``searcher``, and the rest as ``residual``. If it is separated
#: from the rest, ``interaction``: the effect of one calibration on one searcher. With several draws, ``draw``.
Shares = Mapping[str, float]


@dataclass(frozen=True)
class Split:
    """The shares of the variance of one quantity among the searches of one model and M.

    Args:
        panel: The model and M.
        quantity: The quantity; perplexities are used by their logarithm.
        shares: Omega squared: the sums of squares without noise, as shares. Source: Hays, Statistics, 1963.
        raw: Eta squared: the sums of squares over their sum. They favour the factor with more levels.
        intervals: The 95 % interval of each share in `shares` that is tested, by its name. From the noncentral F
            distribution, with the other components held fixed.
        p: The p of the tests that calibrations, and searchers, do not differ. If each calibration has several draws,
            one may have more noise than another. Then the p are from Welch's tests of the means of draws, corrected for
            the pairs of calibrations, and from permutations of the searchers within each draw. Else they are from F
            tests; None without a residual to test against.
        stable: Whether the larger of the two shares stays the larger whichever searcher is left out; None with fewer
            than three searchers.
        n_searches: The number of searches.
        n_searchers: The number of searchers with a result on every calibration and draw; others are left out.
        n_calibrations: The number of calibrations.
        n_draws: The number of draws of all calibrations together.
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
        """Whether some calibration has several draws, so that a calibration is separated from its samples."""
        return self.n_draws > self.n_calibrations


@dataclass(frozen=True)
class LargestChange:
    """The largest difference that one choice makes while the other is held fixed.

    Args:
        panel: The model and M.
        quantity: The quantity.
        by: The choice that is changed: ``calibration`` or ``searcher``.
        fixed: The label of the choice that is held fixed.
        size: The difference between the best and the worst; their ratio if the quantity is compared by ratios.
    """

    panel: Panel
    quantity: Quantity
    by: str
    fixed: str
    size: float


def splits(frame: pd.DataFrame, quantities: Sequence[Quantity]) -> list[Split]:
    """Split each quantity's variance for each model and M with at least two calibrations and two searchers.

    By least squares, with type II sums of squares. If calibrations have several draws, a searcher counts by its mean
    over seeds, and the draws are a random factor nested in calibrations: the calibration is tested against the draws,
    the other parts against searchers times draws. With one draw, all are tested against the seeds if some searcher has
    several, else against the interaction.

    Args:
        frame: The searches, see `cells_frame`.
        quantities: The quantities.

    Returns:
        The split of each quantity, panel by panel.
    """
    split_by_panel = []
    for panel, cells in panels(with_own_seeds(frame)):
        for quantity in quantities:
            if (split := _split(panel, cells, quantity)) is not None:
                split_by_panel.append(split)
    return split_by_panel


def largest_changes(frame: pd.DataFrame, quantity: Quantity) -> list[LargestChange]:
    """Return for each model and M the largest difference of calibrations with one searcher, and of searchers on one.

    Args:
        frame: The searches, see `cells_frame`.
        quantity: The quantity.

    Returns:
        The largest changes, panel by panel.

    Source: Kim et al. 2026 (arXiv 2604.24938), section 5.2.
    """
    largest = []
    for panel, cells in panels(frame):
        means = cells.pivot_table(quantity.key, "searcher", "calibration", partial(mean_of, quantity), observed=True)
        for by, table in (("calibration", means), ("searcher", means.T)):
            several = table[table.count(axis=1) > 1]
            high = several.max(axis=1)
            low = several.min(axis=1)
            sizes = high / low if quantity.ratio else high - low
            if len(sizes):
                largest.append(LargestChange(panel, quantity, by, sizes.idxmax(), float(sizes.max())))
    return largest


def _split(panel: Panel, cells: pd.DataFrame, quantity: Quantity) -> Split | None:
    data = _complete(cells, quantity)
    n_calibrations = data["calibration"].nunique()
    n_searchers = data["searcher"].nunique()
    values = data["value"]
    if n_calibrations < 2 or n_searchers < 2 or np.ptp(values) <= 1e-12 * np.abs(values).max():
        return None
    parts = _analysis_of_variance(data)
    shares = _omega(parts, len(data))
    return Split(
        panel=panel,
        quantity=quantity,
        shares=shares,
        raw=(parts["sum_sq"] / parts["sum_sq"].sum()).to_dict(),
        intervals=_intervals(parts, shares, len(data)),
        p=_tests(data, parts),
        stable=_is_stable(data, shares),
        n_searches=len(data),
        n_searchers=n_searchers,
        n_calibrations=n_calibrations,
        n_draws=data.groupby(["calibration", "draw"]).ngroups,
    )


def _analysis_of_variance(data: pd.DataFrame) -> pd.DataFrame:
    """Return the parts of the variance, a row each: by how much the residual of a fit is larger without the part.

    Every searcher has a result in every draw of a calibration, so the draws are orthogonal to the searchers.

    Returns:
        Columns ``sum_sq``, ``df``; ``error``, the mean square against which it is tested, NaN without a residual, and
        ``error_df``; ``F``, and ``p`` of the test that there is no such part.
    """
    from scipy.special import fdtrc

    calibration = pd.factorize(data["calibration"])[0]
    searcher = pd.factorize(data["searcher"])[0]
    draw = pd.factorize(data["draw"])[0]
    residual = partial(_residual, data["value"].to_numpy() - data["value"].mean())
    # The residuals of fits by the named factors; a number is a level of two factors together.
    by_searcher = residual(searcher)
    by_calibration = residual(calibration)
    by_both = residual(calibration, searcher)
    by_combination = residual(len(data) * calibration + searcher)
    draws = by_calibration - residual(len(data) * calibration + draw)
    has_several_per_combination = by_combination[1] > 0  # draws or seeds separate the interaction from noise
    has_several_draws = draws[1] > 0
    sums = {"calibration": by_searcher - by_both, "searcher": by_calibration - by_both, "residual": by_both}
    if has_several_per_combination:
        sums["interaction"] = by_both - by_combination
        sums["residual"] = by_combination - draws
    if has_several_draws:
        sums["draw"] = draws
    parts = pd.DataFrame(sums, ["sum_sq", "df"]).T
    parts["sum_sq"] = parts["sum_sq"].clip(lower=0)
    noise_names = dict.fromkeys(sums, "residual")
    if has_several_draws:
        noise_names["calibration"] = "draw"
    noise = parts.loc[[*noise_names.values()]]
    parts["error_df"] = noise["df"].to_numpy()
    parts["error"] = (noise["sum_sq"] / noise["df"]).where(noise["df"] > 0).to_numpy()
    parts["F"] = parts["sum_sq"] / parts["df"] / parts["error"]
    return parts.assign(p=fdtrc(parts["df"], parts["error_df"], parts["F"]))


def _tests(data: pd.DataFrame, parts: pd.DataFrame) -> dict[str, float | None]:
    """Return the p of calibration and searcher, see `Split`."""
    table = data.pivot_table("value", ["calibration", "draw"], "searcher")
    draw_means = [means.to_numpy() for _, means in table.mean(axis=1).groupby("calibration")]
    if min(map(len, draw_means)) < 2:
        return {name: finite(float(parts["p"][name])) for name in ("calibration", "searcher")}
    pair_ps = [_welch_p(first, second) for first, second in itertools.combinations(draw_means, 2)]
    calibration_p = min((p for p in holm(pair_ps) if p is not None), default=None)
    # Within each draw, the searchers are permuted: how often do their means differ at least as much as they do?
    permuted = np.random.default_rng(0).permuted(np.tile(table, (RESAMPLES, 1, 1)), axis=2)
    permuted_variances = permuted.mean(axis=1).var(axis=1)
    is_as_far = permuted_variances >= table.mean().var(ddof=0) * (1 - _DUST)
    searcher_p = float((1 + is_as_far.sum()) / (1 + RESAMPLES))
    return {"calibration": calibration_p, "searcher": searcher_p}


def _welch_p(first: _Numbers, second: _Numbers) -> float | None:
    """Return the p of Welch's test that two means are equal."""
    error = joint_error([variance_of_mean(first), variance_of_mean(second)])
    return Difference(float(first.mean() - second.mean()), min(len(first), len(second)), [error]).p


def _residual(values: _Numbers, *factors: npt.NDArray[np.int_]) -> _Numbers:
    """Return the sum of squares that is left of values after a fit by factors, and its degrees of freedom, [2].

    Args:
        values: The values, whose mean is 0, [n].
        factors: The level of each value for each factor, [n].
    """
    design = np.hstack([np.equal.outer(levels, np.unique(levels)) for levels in factors]).astype(float)
    effects, _, rank, _ = np.linalg.lstsq(design.T @ design, design.T @ values)
    return np.array([((values - design @ effects) ** 2).sum(), len(values) - rank])


def _components(parts: pd.DataFrame, n: int) -> pd.Series:
    """Return the variance that each part adds to one value beyond noise, at least 0."""
    noise = parts["error"].fillna(0)
    components = ((parts["sum_sq"] - noise * parts["df"]) / n).clip(lower=0)
    components["residual"] = noise["residual"]
    if "draw" in components:  # a random factor: the variance of all possible draws, not that of these draws
        components["draw"] *= n / (parts["df"]["draw"] * (parts["df"]["searcher"] + 1))
    return components


def _omega(parts: pd.DataFrame, n: int) -> Shares:
    """Return the shares without noise, see `Split`; of the sums of squares where nothing exceeds noise."""
    components = _components(parts, n)
    if not components.any():
        components = parts["sum_sq"]
    return (components / components.sum()).to_dict()


def _intervals(parts: pd.DataFrame, shares: Shares, n: int) -> dict[str, tuple[float, float]]:
    """Return the intervals of the shares that are tested, by the noncentrality of their F."""
    from statsmodels.stats.oneway import confint_noncentrality

    components = _components(parts, n)
    intervals = {}
    for name, part in parts[np.isfinite(parts["F"]) & (parts["error"] > 0)].iterrows():
        if name in ("calibration", "searcher", "interaction"):
            ends = confint_noncentrality(part["F"], (part["df"], part["error_df"]), alpha=0.05)
            explained = np.nan_to_num(np.asarray(ends)) * part["error"] / n
            low, high = explained / (components.sum() - components[name] + explained)
            intervals[name] = float(min(low, shares[name])), float(max(high, shares[name]))
    return intervals


def _is_stable(data: pd.DataFrame, shares: Shares) -> bool | None:
    """Return whether the same share is the larger one whichever searcher is left out, see `Split`."""
    searchers = data["searcher"].unique()
    if len(searchers) < 3:
        return None
    calibration_is_larger = shares["calibration"] > shares["searcher"]
    for searcher in searchers:
        others = data[data["searcher"] != searcher]
        shares_of_others = _omega(_analysis_of_variance(others), len(others))
        if (shares_of_others["calibration"] > shares_of_others["searcher"]) != calibration_is_larger:
            return False
    return True


def _complete(cells: pd.DataFrame, quantity: Quantity) -> pd.DataFrame:
    """Return the searches of those searchers that have a result on every calibration and draw."""
    measured = cells[cells[quantity.key].notna()]
    data = measured[["calibration", "draw", "searcher"]].astype(str)
    data["value"] = quantity.values_of(measured)
    draw_numbers = data.groupby(["calibration", "draw"]).ngroup()
    n_draws = draw_numbers.nunique()
    complete = data[draw_numbers.groupby(data["searcher"]).transform("nunique") == n_draws]
    if n_draws == data["calibration"].nunique():
        return complete
    return complete.groupby(["calibration", "draw", "searcher"], as_index=False)["value"].mean()
