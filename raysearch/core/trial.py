"""A trial: a mask as one search saw it. Also the best trials of each size, and whether the costs of layers add up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter

from raysearch.core.mask import Mask
from raysearch.core.screened import Screened


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


def ranked(trials: Iterable[Trial]) -> list[Trial]:
    """Return the trials that have a loss, lowest first; ties in mask order, as searchers break them."""
    return sorted((trial for trial in trials if trial.loss is not None), key=attrgetter("loss", "mask", "index"))


def best_by_size(trials: Iterable[Trial], at_most: int) -> tuple[Trial, ...]:
    """Return the best trial of each number of removed layers, ascending.

    Args:
        trials: The trials.
        at_most: The largest number of layers; the smallest is 1.

    Returns:
        The trials. A number without an evaluated mask has none.
    """
    best: dict[int, Trial] = {}
    for trial in ranked(trials):
        best.setdefault(len(trial.mask), trial)
    return tuple(best[size] for size in sorted(best) if 1 <= size <= at_most)


@dataclass(frozen=True)
class JointRemoval:
    """The cost of a mask of several layers, and the sum of the costs of its layers.

    Args:
        size: The number of layers.
        delta: The loss of the mask minus the dense model's.
        summed: The sum, over its layers, of the loss without that layer alone minus the dense model's.
    """

    size: int
    delta: float
    summed: float


def joint_removals(trials: Iterable[Trial], group: int = 1) -> list[JointRemoval]:
    """Return every mask of two or more layers whose layers were also scored alone, in the order of the trials.

    Source: Kim et al. 2026 (arXiv 2604.24938), section 3.3: Delta(S) = L(S) - L(dense), and in general the Delta of a
    union is not the sum of its parts' Deltas.

    Args:
        trials: The trials of a search.
        group: The number of layers that can only be removed together; groups then take the place of layers.

    Returns:
        The cost of each such mask, and the sum of the costs of its layers.
    """
    deltas = {trial.mask: trial.delta for trial in trials if trial.delta is not None}
    deltas_alone = {mask.layers[0]: delta for mask, delta in deltas.items() if len(mask) == group}
    return [
        JointRemoval(len(mask), delta, sum(deltas_alone[layer] for layer in mask.layers[::group]))
        for mask, delta in deltas.items()
        if len(mask) > group and all(layer in deltas_alone for layer in mask.layers[::group])
    ]
