"""How far searchers agree on which layers go: Jaccard similarities of their masks.

Only searchers that use the objective count: a baseline finds the same mask by every objective.

Source: Kim et al. 2026 (arXiv 2604.24938), Table 5 and Appendix A.2.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import pandas as pd

from raysearch.core.mask import Mask
from raysearch.reporting.stats.frame import Panel, Setting, panels, settings


@dataclass(frozen=True)
class Agreement:
    """How far the searchers of a setting agree, and each with itself.

    Args:
        mean: Mean Jaccard similarity over pairs of searchers on the same draw; None where there is one.
        chance: What two masks drawn at random from those allowed would have on average.
        between_seeds: Mean over pairs of seeds of the same searcher and draw; None where no searcher has two.
        between_draws: Mean over pairs of draws of the same searcher: how alike masks are that only samples tell apart;
            None where there is one draw.
    """

    setting: Setting
    n_searchers: int
    mean: float | None
    lowest: float | None
    highest: float | None
    removed_by_all: int
    removed_by_any: int
    chance: float
    between_seeds: float | None
    between_draws: float | None

    @property
    def full_overlap(self) -> float:
        """|∩| / |∪| over all masks."""
        return self.removed_by_all / self.removed_by_any


@dataclass(frozen=True)
class CrossAgreement:
    """How far two calibrations agree: Jaccard similarities of what the same searcher removes by each."""

    panel: Panel
    first: str
    second: str
    mean: float
    lowest: float
    highest: float
    n_searchers: int


def agreements(frame: pd.DataFrame, n_layers: Mapping[str, int]) -> list[Agreement]:
    """The agreement of each setting with two searchers of the same draw, or two draws or seeds of a searcher."""
    known = frame[frame["uses_objective"] & frame["removed"].map(bool)]
    found = [_agreement(setting, cells, n_layers[setting.model]) for setting, cells in settings(known)]
    return [one for one in found if {one.mean, one.between_seeds, one.between_draws} != {None}]


def cross_agreements(frame: pd.DataFrame) -> list[CrossAgreement]:
    """The agreement of each two calibrations, by model and M."""
    found = []
    for panel, cells in panels(frame[frame["uses_objective"]]):
        by_calibration = masks_of(cells, "calibration", "searcher").unstack("calibration")
        for first, second in itertools.combinations(by_calibration, 2):
            both = by_calibration[[first, second]].dropna()
            pairs = [similarity(*masks) for masks in both.itertuples(index=False)]
            if pairs:
                found.append(CrossAgreement(panel, first, second, fmean(pairs), min(pairs), max(pairs), len(pairs)))
    return found


def masks_of(cells: pd.DataFrame, *by: str) -> pd.Series:
    """Return the masks that are known, as lists by some labels of their searches."""
    known = cells[cells["removed"].map(bool)]
    return known["removed"].map(Mask).groupby([known[label] for label in by], observed=True).agg(list)


def similarity(some: Sequence[Mask], others: Sequence[Mask] | None = None) -> float:
    """The mean Jaccard similarity over pairs of a mask of the one and a mask of the other, or of two of the one."""
    pairs = itertools.combinations(some, 2) if others is None else itertools.product(some, others)
    return fmean(a.jaccard(b) for a, b in pairs)


def expected_jaccard(n_layers: int, n_remove: int) -> float:
    """The mean Jaccard similarity of two masks that remove M of N removable layers at random.

    The size k of their intersection is hypergeometric; each k weighs k / (2 M - k).
    """
    from scipy.stats import hypergeom

    return float(hypergeom(n_layers, n_remove, n_remove).expect(lambda k: k / (2 * n_remove - k)))


def _agreement(setting: Setting, cells: pd.DataFrame, n_layers: int) -> Agreement:
    found = masks_of(cells, "draw", "searcher")
    by_draw = [list(of) for _, of in found.groupby(level="draw")]
    pairs = [similarity(some, others) for masks in by_draw for some, others in itertools.combinations(masks, 2)]
    seeded = [similarity(masks) for masks in found if len(masks) > 1]
    redrawn = [
        similarity(some, others)
        for _, of in found.groupby(level="searcher", observed=True)
        for some, others in itertools.combinations(of, 2)
    ]
    every = [set(layers) for layers in cells["removed"]]
    n_free = cells["n_free"].fillna(n_layers).iloc[0]
    return Agreement(
        setting=setting,
        n_searchers=cells["searcher"].nunique(),
        mean=fmean(pairs) if pairs else None,
        lowest=min(pairs, default=None),
        highest=max(pairs, default=None),
        removed_by_all=len(set.intersection(*every)),
        removed_by_any=len(set.union(*every)),
        chance=expected_jaccard(int(n_free), setting.remove),
        between_seeds=fmean(seeded) if seeded else None,
        between_draws=fmean(redrawn) if redrawn else None,
    )
