"""Which searcher is best in a setting, and which others are significantly worse.

The best is chosen among all, so each pair of searchers is tested (see `difference`), and the p values are corrected for
the number of pairs by Holm's method. Where searchers are alike, at most one setting of twenty has a searcher that is
significantly worse than the best. A searcher that is not significantly worse is not shown to be as good. That takes a
margin, below which a difference does not matter, and two one-sided tests.
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
from raysearch.reporting.analysis.frame import (
    CALIBRATION_LOSS,
    Quantity,
    Setting,
    mean_of,
    settings,
    without_rounding_errors,
)
from raysearch.reporting.analysis.sides import Side, difference
from raysearch.stats.significance import LEVEL, holm

Verdict = Literal["no significant difference", "some are worse", "one is best", "cannot tell", "one searcher"]


@dataclass(frozen=True)
class Rival:
    """The numbers of a searcher in a setting, over its draws and seeds, and its difference from the best searcher.

    Args:
        searcher: Its label.
        cells: Its searches that are compared, see `on_shared_draws`.
        mean: The mean over draws and seeds; the geometric mean of quantities that are compared by ratios.
        spread: The standard deviation over the seeds of the first draw that has several; None with one seed.
        error: The standard error. That of a loss over the dense model's is by the choice of samples, or over draws if
            there are several. That of an assessed number is by the choice of items, and of draws if there are several.
        cost: The layer-forwards of a search alone, the mean over searches.
        behind: By how much it is worse than the best: a difference, of logarithms for quantities that are compared by
            ratios; 0 for the best itself. Infinite if both numbers are infinite: then no searcher is best.
        noise: The difference below which noise alone keeps 19 of 20 differences; None if it is not known.
        p: The p of the test that noise alone explains the difference, corrected for the number of pairs; None if it is
            not known.
        detectable: The difference that would be detected four times in five, before correction; None if not known.
        equivalent: Whether it is shown to be within the margin, after the same correction; None without a margin.
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
        """Whether it is not significantly worse than the best; None if this is not known."""
        return None if self.p is None else self.p > LEVEL


@dataclass(frozen=True)
class Comparison:
    """The searchers of a setting by one quantity, best first.

    Args:
        setting: The setting.
        quantity: The quantity by which the searchers are compared.
        rivals: The searchers, best first.
        unit: The unit of differences: ``nats per token``, ``points``; nats for logarithms.
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
        """Return a searcher as it compares with the best; None if it has no number."""
        return next((rival for rival in self.rivals if rival.searcher == searcher), None)

    @property
    def detectable(self) -> float | None:
        """The least difference from the best that would be detected four times in five, before correction."""
        return min((rival.detectable for rival in self.rivals[1:] if rival.detectable), default=None)

    @property
    def verdict(self) -> Verdict:
        """How sure the best is, by the number of rivals that are significantly worse."""
        if len(self.rivals) == 1:
            return "one searcher"
        ties = [rival.tied for rival in self.rivals[1:]]
        if False in ties:
            return "some are worse" if True in ties or None in ties else "one is best"
        return "no significant difference" if all(ties) else "cannot tell"  # if the noise of some rival is not known


def compare(
    setting: Setting, cells: pd.DataFrame, quantity: Quantity, margin: float | None = None
) -> Comparison | None:
    """Compare the searchers of a setting, by the searches of `on_shared_draws`.

    Of two searchers with equal means the cheaper one is first, then the first one of the study.

    Args:
        setting: The setting.
        cells: Its comparable searches.
        quantity: The quantity by which they are compared.
        margin: The difference below which two searchers are as good as each other; None for no margin.

    Returns:
        The comparison; None if no search has the quantity.
    """
    measured = dict(iter(on_shared_draws(cells, quantity).groupby("searcher", observed=True)))
    if not measured:
        return None
    sides = {name: Side(searches, quantity) for name, searches in measured.items()}
    rivals = [_rival(name, searches, sides[name], quantity) for name, searches in measured.items()]
    scores = {name: without_rounding_errors(-quantity.sign * side.score) for name, side in sides.items()}
    rivals.sort(key=lambda rival: (scores[rival.searcher], math.isnan(rival.cost), rival.cost))
    pairs = itertools.combinations([sides[rival.searcher] for rival in rivals], 2)
    gaps = [difference(side, other_side, quantity) for side, other_side in pairs]
    corrected = holm([gap.p for gap in gaps]), holm([gap.equivalence_p(margin) for gap in gaps])
    best, *others = rivals
    ordered = [best if math.isfinite(best.mean) else replace(best, behind=math.inf, p=None)]
    for rival, gap, p, equivalence_p in zip(others, gaps, *corrected, strict=False):  # the pairs of the best come first
        behind = math.inf if math.isnan(gap.value) else max(0.0, quantity.sign * gap.value)
        tested = replace(
            rival,
            behind=behind,
            noise=gap.half_width(),
            p=p,
            detectable=gap.detectable,
            equivalent=None if equivalence_p is None else equivalence_p <= LEVEL,
        )
        ordered.append(tested)
    return Comparison(setting, quantity, ordered, quantity.difference_unit or str(cells["unit"].iloc[0]))


def on_shared_draws(cells: pd.DataFrame, quantity: Quantity) -> pd.DataFrame:
    """Return the searches of a setting that have a quantity, of those draws that all searchers have.

    Without such a draw, return those of all draws. Draws differ by far more than searchers do.

    Args:
        cells: The searches of the setting.
        quantity: The quantity.

    Returns:
        The rows of `cells` that have the quantity, on shared draws if there are some.
    """
    measured = cells[cells[quantity.key].notna()]
    n_searchers = measured.groupby("draw")["searcher"].transform("nunique")
    complete = measured[n_searchers == measured["searcher"].nunique()]
    return complete if len(complete) else measured


def comparisons(frame: pd.DataFrame, quantity: Quantity, margin: float | None = None) -> list[Comparison]:
    """Return the comparison of each setting by a quantity, without the settings that do not have it.

    Args:
        frame: The searches, see `cells_frame`.
        quantity: The quantity by which searchers are compared.
        margin: The difference below which two searchers are as good as each other; None for no margin.

    Returns:
        The comparisons, in the order of the settings.
    """
    by_setting = [compare(setting, cells, quantity, margin) for setting, cells in settings(frame)]
    return [comparison for comparison in by_setting if comparison is not None]


def _rival(searcher: str, cells: pd.DataFrame, side: Side, quantity: Quantity) -> Rival:
    has_several_seeds = len(cells) > len(side.by_draw)
    spreads = cells.groupby("draw")[quantity.key].std().dropna() if has_several_seeds else ()
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
    has_several_draws = len(side.by_draw) > 1
    if quantity == CALIBRATION_LOSS and has_several_draws:
        return float(cells.groupby("draw")["delta"].mean().sem())
    if side.error is None or not math.isfinite(side.score):
        return None
    means = [float(values.mean()) for values in side.by_draw.values()]
    error_over_draws = statistics.stdev(means) / math.sqrt(len(means)) if has_several_draws else 0.0
    error = math.hypot(side.error, error_over_draws)
    return error * math.exp(side.score) if quantity.ratio else error
