"""Which searcher is best in a setting, and which others are significantly worse.

The best is chosen among all, so each pair of searchers is tested (see `difference`), and the p values are corrected for
the number of pairs by Holm's method: where searchers are alike, some other is significantly worse than the best in one
of twenty settings at most. That a searcher is not significantly worse does not show that it is as good. Only a margin,
below which a difference does not matter, lets two searchers tie: by two one-sided tests.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pandas as pd

from raysearch.core.json import finite
from raysearch.reporting.stats.difference import LEVEL, Side, difference, holm
from raysearch.reporting.stats.frame import CALIBRATION_LOSS, Quantity, Setting, mean_of, settings, tidy

Verdict = Literal["no significant difference", "some are worse", "one is best", "cannot tell", "one searcher"]


@dataclass(frozen=True)
class Rival:
    """A searcher's numbers in a setting, over its draws and seeds, and how it stands beside the best one.

    Args:
        cells: Its searches that are compared, see `on_shared_draws`.
        mean: Over draws and seeds; the geometric one of quantities that are compared by ratios.
        spread: Standard deviation over seeds of a draw, the first with several; None with one seed.
        error: Standard error: of a loss over the dense model's by the choice of samples, over draws where there are
            several; of what was assessed by the choice of items and, where there are several, of draws.
        cost: Layer-forwards that it takes alone, the mean over searches.
        behind: By how much it is worse than the best: a difference, or one of logarithms for quantities that are
            compared by ratios; 0 for the best itself. Infinite where both numbers are: nothing is best.
        noise: How large a difference noise alone explains in 19 of 20 cases; None if it is not known.
        p: That noise alone explains the difference, corrected for the number of pairs; None if it is not known.
        detectable: A difference that would be detected four times in five, before correction; None if not known.
        equivalent: Whether it is shown to be within the margin, corrected likewise; None without a margin.
    """

    searcher: str
    cells: pd.DataFrame
    mean: float
    spread: float | None
    error: float | None
    cost: float
    behind: float = 0.0
    noise: float | None = 0.0
    p: float | None = 1.0
    detectable: float | None = None
    equivalent: bool | None = None

    @property
    def tied(self) -> bool | None:
        """Whether it is not significantly worse than the best; None if that is not known."""
        return None if self.p is None else self.p > LEVEL


@dataclass(frozen=True)
class Comparison:
    """The searchers of a setting by one quantity, best first.

    Args:
        unit: Of differences: ``nats per token``, ``points``; nats of logarithms.
    """

    setting: Setting
    quantity: Quantity
    rivals: Sequence[Rival]
    unit: str = ""

    @property
    def best(self) -> Rival:
        """The searcher with the best mean."""
        return self.rivals[0]

    def rival(self, searcher: str) -> Rival | None:
        """Return a searcher beside the best; None if it has no number."""
        return next((rival for rival in self.rivals if rival.searcher == searcher), None)

    @property
    def detectable(self) -> float | None:
        """Of any rival that differs the least difference that would be told four times in five, before correction."""
        return min((one.detectable for one in self.rivals[1:] if one.detectable), default=None)

    @property
    def verdict(self) -> Verdict:
        """How sure the best is, by the rivals that differ from it beyond noise."""
        if len(self.rivals) == 1:
            return "one searcher"
        ties = [rival.tied for rival in self.rivals[1:]]
        if False in ties:
            return "some are worse" if True in ties or None in ties else "one is best"
        return "no significant difference" if all(ties) else "cannot tell"  # where noise is not known of some


def compare(
    setting: Setting, cells: pd.DataFrame, quantity: Quantity, margin: float | None = None
) -> Comparison | None:
    """Compare a setting's searchers by its comparable searches; None if none of these has the quantity.

    See `on_shared_draws`. A tie of means goes to the cheaper, then to the first. Searchers are as good as each other
    below a `margin`.
    """
    measured = dict(iter(on_shared_draws(cells, quantity).groupby("searcher", observed=True)))
    if not measured:
        return None
    sides = {name: Side(mine, quantity) for name, mine in measured.items()}
    rivals = [_rival(name, mine, sides[name], quantity) for name, mine in measured.items()]
    rivals.sort(key=lambda one: (tidy(-quantity.sign * sides[one.searcher].score), math.isnan(one.cost), one.cost))
    pairs = itertools.combinations([sides[rival.searcher] for rival in rivals], 2)
    gaps = [difference(one, other, quantity) for one, other in pairs]
    corrected = holm([gap.p for gap in gaps]), holm([gap.equivalence_p(margin) for gap in gaps])
    best, *others = rivals
    beside = [best if math.isfinite(best.mean) else replace(best, behind=math.inf, p=None)]
    for one, gap, p, equivalence_p in zip(others, gaps, *corrected, strict=False):  # the pairs of the best come first
        behind = math.inf if math.isnan(gap.value) else max(0.0, quantity.sign * gap.value)
        noise, detectable = gap.half_width(), gap.detectable
        equivalent = None if equivalence_p is None else equivalence_p <= LEVEL
        beside.append(replace(one, behind=behind, noise=noise, p=p, detectable=detectable, equivalent=equivalent))
    return Comparison(setting, quantity, beside, quantity.difference_unit or str(cells["unit"].iloc[0]))


def on_shared_draws(cells: pd.DataFrame, quantity: Quantity) -> pd.DataFrame:
    """Return the searches of a setting that have a quantity, of the draws that all searchers have; of all without one.

    Draws differ by far more than searchers do.
    """
    known = cells[cells[quantity.key].notna()]
    n_searchers = known.groupby("draw")["searcher"].transform("nunique")
    complete = known[n_searchers == known["searcher"].nunique()]
    return complete if len(complete) else known


def comparisons(frame: pd.DataFrame, quantity: Quantity, margin: float | None = None) -> list[Comparison]:
    """Every setting's comparison by a quantity, where there is one."""
    return [one for setting, cells in settings(frame) if (one := compare(setting, cells, quantity, margin))]


def _rival(searcher: str, cells: pd.DataFrame, side: Side, quantity: Quantity) -> Rival:
    several = len(cells) > len(side.by_draw)  # seeds of a draw
    spreads = cells.groupby("draw")[quantity.key].std().dropna() if several else ()
    return Rival(
        searcher=searcher,
        cells=cells,
        mean=mean_of(quantity, cells[quantity.key]),
        spread=next(iter(spreads), None),
        error=finite(_error(cells, side, quantity)),
        cost=float(cells["layer_forwards_alone"].mean()),
    )


def _error(cells: pd.DataFrame, side: Side, quantity: Quantity) -> float | None:
    """Return the standard error of a searcher's mean; None if it is not known."""
    several = len(side.by_draw) > 1
    if quantity == CALIBRATION_LOSS and several:
        return float(cells.groupby("draw")["delta"].mean().sem())
    if side.error is None or not math.isfinite(side.score):
        return None
    means = [float(values.mean()) for values in side.by_draw.values()]
    error = math.hypot(side.error, statistics.stdev(means) / math.sqrt(len(means)) if several else 0.0)
    return error * math.exp(side.score) if quantity.ratio else error
