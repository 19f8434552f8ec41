"""How far searchers agree on which layers to remove: Jaccard similarities of their masks.

Only searchers that use the objective count, since a baseline finds the same mask for every objective.

Source: Kim et al. 2026 (arXiv 2604.24938), Table 5 and Appendix A.2.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import pandas as pd

from raysearch.core.mask import Mask
from raysearch.core.site import Sites
from raysearch.reporting.analysis.frame import Panel, Setting, panels, settings


@dataclass(frozen=True)
class MaskAgreement:
    """How far the searchers of a setting agree with each other, and each with itself.

    Args:
        setting: The setting.
        n_searchers: The number of its searchers.
        mean: The mean Jaccard similarity over pairs of searchers on the same draw; None if there is one searcher.
        lowest: The lowest similarity of such a pair.
        highest: The highest similarity of such a pair.
        removed_by_all: The number of layers that every mask removes; of halves, if a mask has single halves.
        removed_by_any: The number of layers, or halves, that at least one mask removes.
        chance: The mean similarity of two masks drawn at random from those allowed; None if the searches have several
            spaces, or one whose sites overlap.
        between_seeds: The mean over pairs of seeds of the same searcher and draw; None if no searcher has two seeds.
        between_draws: The mean over pairs of draws of the same searcher: how alike masks are that differ only by their
            samples; None if there is one draw.
    """

    setting: Setting
    n_searchers: int
    mean: float | None
    lowest: float | None
    highest: float | None
    removed_by_all: int
    removed_by_any: int
    chance: float | None
    between_seeds: float | None
    between_draws: float | None

    @property
    def full_overlap(self) -> float:
        """|∩| / |∪| over all masks."""
        return self.removed_by_all / self.removed_by_any


@dataclass(frozen=True)
class CrossAgreement:
    """How far two calibrations agree: Jaccard similarities of the masks of the same searcher on both.

    Args:
        panel: The model and M.
        first: The one calibration.
        second: The other calibration.
        mean: The mean similarity over searchers.
        lowest: The lowest similarity of a searcher.
        highest: The highest similarity of a searcher.
        n_searchers: The number of searchers with masks on both.
    """

    panel: Panel
    first: str
    second: str
    mean: float
    lowest: float
    highest: float
    n_searchers: int


def agreements(frame: pd.DataFrame, sites: Mapping[str, Sites]) -> list[MaskAgreement]:
    """Return the agreement of each setting with two searchers on one draw, or two draws or seeds of one searcher.

    Args:
        frame: The searches, see `cells_frame`.
        sites: The layers of each model; all count as removable for searches that did not record how many are.

    Returns:
        The agreement of each such setting, in the order of the study.
    """
    searches = frame[frame["uses_objective"] & frame["removed"].map(bool)]
    all_agreements = [_agreement(setting, cells, sites[setting.model]) for setting, cells in settings(searches)]
    return [agreement for agreement in all_agreements if _has_pairs(agreement)]


def _has_pairs(agreement: MaskAgreement) -> bool:
    similarities = (agreement.mean, agreement.between_seeds, agreement.between_draws)
    return any(value is not None for value in similarities)


def cross_agreements(frame: pd.DataFrame) -> list[CrossAgreement]:
    """Return the agreement of each pair of calibrations, by model and M."""
    between_calibrations = []
    for panel, cells in panels(frame[frame["uses_objective"]]):
        by_calibration = masks_of(cells, "calibration", "searcher").unstack("calibration")
        for first, second in itertools.combinations(by_calibration, 2):
            shared = by_calibration[[first, second]].dropna()
            pairs = [similarity(*masks) for masks in shared.itertuples(index=False)]
            if pairs:
                between_calibrations.append(
                    CrossAgreement(panel, first, second, fmean(pairs), min(pairs), max(pairs), len(pairs))
                )
    return between_calibrations


def masks_of(cells: pd.DataFrame, *by: str) -> pd.Series:
    """Return the known masks, as lists by labels of their searches.

    Args:
        cells: The searches, see `cells_frame`.
        by: The columns of the labels by which the masks are grouped.

    Returns:
        The masks of each combination of labels.
    """
    searches = cells[cells["removed"].map(bool)]
    return searches["removed"].map(_mask_of).groupby([searches[label] for label in by], observed=True).agg(list)


def _mask_of(removed: Sequence[int | str]) -> Mask:
    return Mask.of(*removed)


def similarity(masks: Sequence[Mask], other_masks: Sequence[Mask] | None = None) -> float:
    """Return the mean Jaccard similarity over pairs of masks.

    Args:
        masks: The first mask of each pair; both masks if there are no others.
        other_masks: The second mask of each pair.

    Returns:
        The similarity, 0 … 1.
    """
    pairs = itertools.combinations(masks, 2) if other_masks is None else itertools.product(masks, other_masks)
    return fmean(mask.jaccard(other_mask) for mask, other_mask in pairs)


def expected_jaccard(n_free: int, n_remove: int) -> float:
    """Return the mean Jaccard similarity of two masks that remove M of N removable sites at random.

    The size k of their intersection is hypergeometric; for each k the similarity is k / (2 M - k).

    Args:
        n_free: N.
        n_remove: M.

    Returns:
        The expected similarity, 0 … 1.
    """
    from scipy.stats import hypergeom

    return float(hypergeom(n_free, n_remove, n_remove).expect(lambda k: k / (2 * n_remove - k)))


def _agreement(setting: Setting, cells: pd.DataFrame, sites: Sites) -> MaskAgreement:
    # The masks of each searcher on each draw, a mask for each seed.
    by_place = masks_of(cells, "draw", "searcher")
    by_draw = [list(masks) for _, masks in by_place.groupby(level="draw")]
    pairs = [similarity(first, second) for masks in by_draw for first, second in itertools.combinations(masks, 2)]
    between_seeds = [similarity(masks) for masks in by_place if len(masks) > 1]
    between_draws = [
        similarity(first, second)
        for _, searcher_masks in by_place.groupby(level="searcher", observed=True)
        for first, second in itertools.combinations(searcher_masks, 2)
    ]
    masks = [*map(_mask_of, cells["removed"])]
    has_halves = any(mask.halves for mask in masks)
    removed: list[set[object]] = [{*mask.all_halves} if has_halves else {*mask.layers} for mask in masks]
    return MaskAgreement(
        setting=setting,
        n_searchers=cells["searcher"].nunique(),
        mean=fmean(pairs) if pairs else None,
        lowest=min(pairs, default=None),
        highest=max(pairs, default=None),
        removed_by_all=len(set.intersection(*removed)),
        removed_by_any=len(set.union(*removed)),
        chance=_chance(setting, cells, sites),
        between_seeds=fmean(between_seeds) if between_seeds else None,
        between_draws=fmean(between_draws) if between_draws else None,
    )


def _chance(setting: Setting, cells: pd.DataFrame, layers: Sites) -> float | None:
    """Return the mean similarity of two random masks; None for several spaces, or one whose sites overlap."""
    space, *others = {*cells["space"]}
    if others or any(space.select(layers).overlaps):
        return None
    n_free = int(cells["n_free"].fillna(len(layers)).iloc[0])
    group = int(cells["group"].fillna(1).iloc[0])  # groups are shared as layers are
    return expected_jaccard(n_free // group, setting.remove // group)
