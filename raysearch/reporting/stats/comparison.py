"""Which searcher is best in a setting, which others tie with it within noise, and which of those is cheapest.

Two kinds of noise stand between two searchers: by the choice of samples (standard errors), and by the searcher's own
random numbers (the spread over seeds). Two searchers tie if their means differ by no more than

    sqrt((2 · sample error)² + (t · seed error)²)

where t is Student's 97.5 % quantile, its degrees of freedom by Welch and Satterthwaite. No correction is made for the
number of searchers, so among many, one or another may stand apart by chance.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pandas as pd

from raysearch.core.json import finite
from raysearch.reporting.stats.frame import CALIBRATION_LOSS, Quantity, Setting, settings

STANDARD_ERRORS = 2.0
_DUST = 1e-12  # relative; differences below it come from the order of additions

Verdict = Literal["all tie", "some tie", "one is best", "cannot tell", "one searcher"]


@dataclass(frozen=True)
class Rival:
    """A searcher's numbers in a setting, over its seeds, and how it stands beside the best one.

    Args:
        searcher: Its label.
        n: Seeds that have the number.
        mean: Over seeds.
        spread: Standard deviation over seeds; None with one seed.
        error: Standard error by the choice of samples, the mean over seeds, since seeds share the samples.
        error_to_best: The same of the difference to the setting's lowest loss; None for other quantities than the loss.
        cost: Layer-forwards that it takes alone, the mean over seeds.
        masks: The distinct masks that it found.
        behind: By how much it is worse than the best, in the quantity's unit; 0 for the best itself.
        noise: How large a difference noise alone explains; None if it is not known.
        tied: Whether it is within noise of the best; None if that is not known.
    """

    searcher: str
    n: int
    mean: float
    spread: float | None
    error: float | None
    error_to_best: float | None
    cost: float
    masks: frozenset[tuple[int, ...]]
    behind: float = 0.0
    noise: float | None = 0.0
    tied: bool | None = True


@dataclass(frozen=True)
class Comparison:
    """The searchers of a setting by one quantity, best first.

    Args:
        setting: Where.
        quantity: By what.
        rivals: Every searcher that has the quantity, best first; the first is the best.
    """

    setting: Setting
    quantity: Quantity
    rivals: Sequence[Rival]

    @property
    def best(self) -> Rival:
        """The searcher with the best mean."""
        return self.rivals[0]

    def rival(self, searcher: str) -> Rival | None:
        """Return a searcher beside the best; None if it has no number."""
        return next((rival for rival in self.rivals if rival.searcher == searcher), None)

    @property
    def tied(self) -> list[Rival]:
        """The best and whatever is within noise of it."""
        return [rival for rival in self.rivals if rival.tied]

    @property
    def cheapest(self) -> Rival | None:
        """Of those within noise of the best the one with the fewest layer-forwards; None if costs are not known."""
        priced = [one for one in self.tied if math.isfinite(one.cost)]
        return min(priced, key=lambda one: one.cost, default=None)

    @property
    def verdict(self) -> Verdict:
        """How sure the best is, by the rivals that differ from it beyond noise."""
        if len(self.rivals) == 1:
            return "one searcher"
        others = self.rivals[1:]
        if all(rival.tied for rival in others):
            return "all tie"
        if all(rival.behind == 0 for rival in others if rival.tied is not None):
            return "cannot tell"  # equal numbers are a tie without knowing the noise, and tell nothing of the others
        return "some tie" if any(rival.tied for rival in others) else "one is best"


def compare(setting: Setting, cells: pd.DataFrame, quantity: Quantity) -> Comparison | None:
    """Compares a setting's searchers.

    Args:
        setting: Where.
        cells: Its comparable searches.
        quantity: By what.

    Returns:
        The comparison; None if no search has the quantity. A tie of means goes to the cheaper, then to the first.
    """
    measured = cells[cells[quantity.key].notna()]
    rivals = [_rival(name, mine, quantity) for name, mine in measured.groupby("searcher", observed=True)]
    if not rivals:
        return None
    order = sorted(rivals, key=lambda one: (-quantity.sign * one.mean, math.isnan(one.cost), one.cost))
    return Comparison(setting, quantity, [order[0], *(_beside(one, order[0], quantity) for one in order[1:])])


def comparisons(frame: pd.DataFrame, quantity: Quantity) -> list[Comparison]:
    """Every setting's comparison by a quantity, where there is one."""
    return [one for setting, cells in settings(frame) if (one := compare(setting, cells, quantity))]


def _rival(searcher: str, cells: pd.DataFrame, quantity: Quantity) -> Rival:
    values = cells[quantity.key]
    return Rival(
        searcher=searcher,
        n=len(values),
        mean=statistics.fmean(values),
        spread=finite(values.std()),
        error=finite(cells[quantity.error].mean(skipna=False)),
        error_to_best=finite(cells["error_to_best"].mean(skipna=False)) if quantity == CALIBRATION_LOSS else None,
        cost=float(cells["layer_forwards_alone"].mean()),
        masks=frozenset(mask for mask in cells["removed"] if mask),
    )


def _beside(one: Rival, best: Rival, quantity: Quantity) -> Rival:
    behind = quantity.sign * (best.mean - one.mean)
    if abs(behind) <= _DUST * max(abs(best.mean), 1e-300):
        return one
    noise = _noise(one, best)
    return replace(one, behind=behind, noise=noise, tied=None if noise is None else behind <= noise)


def _noise(one: Rival, best: Rival) -> float | None:
    """How large a difference noise alone explains; None if neither samples nor seeds tell."""
    sample, (seed, quantile) = _sample_error(one, best), _seed_error(one, best)
    if sample is None and seed is None:
        return None
    return math.hypot(STANDARD_ERRORS * (sample or 0.0), quantile * (seed or 0.0))


def _sample_error(one: Rival, best: Rival) -> float | None:
    if one.error_to_best is not None and best.error_to_best is not None:
        return one.error_to_best + best.error_to_best  # the triangle inequality; the second is 0 for a single seed
    if one.error is None or best.error is None:
        return None
    return math.hypot(one.error, best.error)  # as if of different samples: too wide rather than too narrow


def _seed_error(one: Rival, best: Rival) -> tuple[float | None, float]:
    """The standard error of the difference of means by seeds, and Student's quantile that goes with it."""
    from scipy.stats import t

    parts = [(side.spread**2 / side.n, side.n - 1) for side in (one, best) if side.spread is not None]
    variance = sum(part for part, _ in parts)
    if not parts:
        return None, 0.0
    if variance == 0:
        return 0.0, 0.0
    freedom = variance**2 / sum(part**2 / degrees for part, degrees in parts)
    return math.sqrt(variance), float(t.ppf(0.975, freedom))
