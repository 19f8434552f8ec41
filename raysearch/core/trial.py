"""A trial: a mask as one search saw it. Also the best trials of each size, and whether the costs of sites add up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter

from raysearch.core.mask import Mask
from raysearch.core.scale import Scale
from raysearch.core.screened import Screened
from raysearch.core.site import Sites
from raysearch.core.space import LAYERS, Space


@dataclass(frozen=True)
class Trial:
    """A mask as one search saw it.

    Args:
        index: Its position in the order of proposal, 0-based; the dense model is trial 0, of round 0.
        round: The round that proposed it, 1-based; 0 for the dense model.
        mask: The mask.
        loss: Its loss, in the measure's unit; None if the evaluation failed, or the mask was screened.
        delta: Its loss minus the dense model's; None if there is no loss.
        failure: The cause, if the evaluation failed.
        cached: Whether the ledger contained the evaluation, so that nothing was computed.
        parts: If there are several calibrations, the loss on each by its name, except those that failed.
        screened: An estimate of the loss, if the mask was dropped or accepted before its evaluation was complete.
        scales: The factors of its cuts, if it was repaired by them before its evaluation.
    """

    index: int
    round: int
    mask: Mask
    loss: float | None
    delta: float | None
    failure: str | None
    cached: bool
    parts: Mapping[str, float] = field(default_factory=dict)
    screened: Screened | None = None
    scales: tuple[Scale, ...] = ()


def ranked(trials: Iterable[Trial]) -> list[Trial]:
    """Return the trials that have a loss, lowest first; ties in mask order, as searchers break them."""
    return sorted((trial for trial in trials if trial.loss is not None), key=attrgetter("loss", "mask", "index"))


def best_by_size(trials: Iterable[Trial], at_most: int, space: Space = LAYERS) -> tuple[Trial, ...]:
    """Return the best trial of each size of masks, ascending.

    Args:
        trials: The trials.
        at_most: The largest size; the smallest is 1.
        space: What sizes count: layers, pairs, halves.

    Returns:
        The trials. A size without an evaluated mask has none.
    """
    best: dict[int, Trial] = {}
    for trial in ranked(trials):
        best.setdefault(space.size_of(trial.mask), trial)
    return tuple(best[size] for size in sorted(best) if 1 <= size <= at_most)


@dataclass(frozen=True)
class JointRemoval:
    """The cost of a mask of several sites, and the sum of the costs of its sites.

    Args:
        size: The size of the mask, as ``remove=`` counts it.
        delta: The loss of the mask minus the dense model's.
        summed: The sum, over its sites, of the loss without that site alone minus the dense model's.
    """

    size: int
    delta: float
    summed: float


def joint_removals(trials: Iterable[Trial], sites: Sites, space: Space = LAYERS) -> list[JointRemoval]:
    """Return every mask of two or more sites whose sites were also scored alone, in the order of the trials.

    Source: Kim et al. 2026 (arXiv 2604.24938), section 3.3: Delta(S) = L(S) - L(dense), and in general the Delta of a
    union is not the sum of its parts' Deltas.

    Args:
        trials: The trials of a search.
        sites: The sites of the search: layers, groups of layers, or those of another space.
        space: The space of the search.

    Returns:
        The cost of each such mask, and the sum of the costs of its sites.
    """
    deltas = {trial.mask: trial.delta for trial in trials if trial.delta is not None}
    indices_of = {mask: indices for mask in deltas if (indices := sites.indices_of(mask)) is not None}
    deltas_alone = {indices.layers[0]: deltas[mask] for mask, indices in indices_of.items() if len(indices) == 1}
    return [
        JointRemoval(space.size_of(mask), deltas[mask], sum(deltas_alone[index] for index in indices))
        for mask, indices in indices_of.items()
        if len(indices) > 1 and all(index in deltas_alone for index in indices)
    ]
