"""How much of a result is the calibration's doing, how much the searcher's: analysis of variance, and plain spreads.

Only what all calibrations share is split: averages of assessed metrics. A calibration's own loss has its own unit, so
losses of two calibrations are never put on one scale. Searchers that do not use the objective are left out, as they
would dilute the calibration's share, and so are those whose luck is the same in several draws (`by_own_luck`).
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
from raysearch.reporting.stats.difference import Difference, holm, of_mean, total
from raysearch.reporting.stats.frame import Panel, Quantity, by_own_luck, mean_of, panels

_Numbers = npt.NDArray[np.float64]
RESAMPLES = 9999
_DUST = 1e-9  # relative; differences below it come from the order of additions

#: Shares of a variance, together 1: ``calibration``, ``searcher``, and the rest as ``residual``. Where it is separated
#: from the rest, ``interaction``, what one calibration does to one searcher alone; with several draws also ``draw``.
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
        p: That calibrations, and searchers, do not differ. Where each calibration has several draws, one may have more
            noise than another: by Welch's tests of the means of draws, corrected for the pairs of calibrations, and by
            permutations of the searchers within each draw. Else by F tests; None without a residual to test against.
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
        """Whether some calibration has several draws, so that a calibration is separated from its samples."""
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

    By least squares, with type II sums of squares. Where calibrations have several draws, a searcher counts by its mean
    over seeds, and the draws are a random factor nested in calibrations: the F of the calibration is against the
    draws, the others against searchers times draws. With one draw, against the seeds where some searcher has several,
    else against what both together do.
    """
    return [
        found
        for panel, cells in panels(by_own_luck(frame))
        for one in quantities
        if (found := _split(panel, cells, one))
    ]


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
    """The parts of the variance, a row each: what a fit without the part leaves over more than one with it.

    Searchers are complete in every draw of a calibration, so its draws are orthogonal to them.

    Returns:
        Columns ``sum_sq``, ``df``; ``error``, the mean square that it is tested against, NaN where nothing is left, and
        ``error_df``; ``F``, and ``p`` of the test that there is no such part.
    """
    from scipy.special import fdtrc

    calibration, draw, searcher = (pd.factorize(data[name])[0] for name in ("calibration", "draw", "searcher"))
    left_over = partial(_left_over, data["value"].to_numpy() - data["value"].mean())
    apart, together = left_over(calibration, searcher), left_over(len(data) * calibration + searcher)
    of_calibrations = left_over(calibration)
    of_draws = of_calibrations - left_over(len(data) * calibration + draw)
    sums = {"calibration": left_over(searcher) - apart, "searcher": of_calibrations - apart, "residual": apart}
    if together[1] > 0:  # several draws or seeds, which tell the interaction from noise
        sums |= {"interaction": apart - together, "residual": together - of_draws}
    if of_draws[1] > 0:
        sums["draw"] = of_draws
    parts = pd.DataFrame(sums, ["sum_sq", "df"]).T
    parts["sum_sq"] = parts["sum_sq"].clip(lower=0)
    against = parts.loc[["draw" if "draw" in sums and name == "calibration" else "residual" for name in sums]]
    parts["error_df"] = against["df"].to_numpy()
    parts["error"] = (against["sum_sq"] / against["df"]).where(against["df"] > 0).to_numpy()
    parts["F"] = parts["sum_sq"] / parts["df"] / parts["error"]
    return parts.assign(p=fdtrc(parts["df"], parts["error_df"], parts["F"]))


def _tests(data: pd.DataFrame, parts: pd.DataFrame) -> dict[str, float | None]:
    """The p of calibration and searcher; see `Split`."""
    table = data.pivot_table("value", ["calibration", "draw"], "searcher")
    means = [of.to_numpy() for _, of in table.mean(axis=1).groupby("calibration")]
    if min(map(len, means)) < 2:
        return {name: finite(float(parts["p"][name])) for name in ("calibration", "searcher")}
    pairs = [
        Difference(
            float(one.mean() - other.mean()), min(len(one), len(other)), [total([of_mean(one), of_mean(other)])]
        ).p
        for one, other in itertools.combinations(means, 2)
    ]
    permuted = np.random.default_rng(0).permuted(np.tile(table, (RESAMPLES, 1, 1)), axis=2)
    further = permuted.mean(axis=1).var(axis=1) >= table.mean().var(ddof=0) * (1 - _DUST)
    of_calibrations = min((p for p in holm(pairs) if p is not None), default=None)
    return {"calibration": of_calibrations, "searcher": float((1 + further.sum()) / (1 + RESAMPLES))}


def _left_over(values: _Numbers, *factors: npt.NDArray[np.int_]) -> _Numbers:
    """The sum of squares, and its degrees of freedom, that effects of factors leave of values whose mean is 0, [n]."""
    design = np.hstack([np.equal.outer(places, np.unique(places)) for places in factors]).astype(float)
    effects, _, rank, _ = np.linalg.lstsq(design.T @ design, design.T @ values)
    return np.array([((values - design @ effects) ** 2).sum(), len(values) - rank])


def _components(parts: pd.DataFrame, n: int) -> pd.Series:
    """The variance that each part adds to one value beyond noise, at least 0."""
    noise = parts["error"].fillna(0)
    found = ((parts["sum_sq"] - noise * parts["df"]) / n).clip(lower=0)
    found["residual"] = noise["residual"]
    if "draw" in found:  # a random factor: its variance, not that of the draws at hand
        found["draw"] *= n / (parts["df"]["draw"] * (parts["df"]["searcher"] + 1))
    return found


def _omega(parts: pd.DataFrame, n: int) -> Shares:
    found = _components(parts, n)
    if not found.any():
        found = parts["sum_sq"]
    return (found / found.sum()).to_dict()


def _intervals(parts: pd.DataFrame, shares: Shares, n: int) -> dict[str, tuple[float, float]]:
    """Intervals of the shares that are tested, by the noncentrality of their F."""
    from statsmodels.stats.oneway import confint_noncentrality

    components = _components(parts, n)
    found = {}
    for name, part in parts[np.isfinite(parts["F"]) & (parts["error"] > 0)].iterrows():
        if name in ("calibration", "searcher", "interaction"):
            ends = confint_noncentrality(part["F"], (part["df"], part["error_df"]), alpha=0.05)
            own = np.nan_to_num(np.asarray(ends)) * part["error"] / n
            low, high = own / (components.sum() - components[name] + own)
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
    data["value"] = quantity.of(known)
    place = data.groupby(["calibration", "draw"]).ngroup()
    complete = data[place.groupby(data["searcher"]).transform("nunique") == place.nunique()]
    if place.nunique() == data["calibration"].nunique():
        return complete
    return complete.groupby(["calibration", "draw", "searcher"], as_index=False)["value"].mean()
