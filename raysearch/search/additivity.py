"""Whether layers cost together what they cost apart: the Delta of unions against sums.

Source: Kim et al. 2026 (arXiv 2604.24938), section 3.3: Delta(S) = L(S) - L(dense), and in general the Delta of a union
is not the sum of its parts' Deltas.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from raysearch.search.trial import Trial


@dataclass(frozen=True)
class Union:
    """A mask of several layers of which each was removed alone too.

    Args:
        size: How many layers.
        delta: What they cost together, over the dense loss.
        summed: The sum of what each costs alone.
    """

    size: int
    delta: float
    summed: float


def unions(trials: Iterable[Trial]) -> list[Union]:
    """Return every mask of two layers or more of which each layer was scored alone, in the order of the trials."""
    known = {trial.mask: trial.delta for trial in trials if trial.delta is not None}
    alone = {mask.layers[0]: delta for mask, delta in known.items() if len(mask) == 1}
    return [
        Union(len(mask), delta, sum(alone[layer] for layer in mask))
        for mask, delta in known.items()
        if len(mask) > 1 and all(layer in alone for layer in mask)
    ]
