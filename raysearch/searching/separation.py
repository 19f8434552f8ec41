"""How well the samples of a search separate the mask that it found from the other masks that it evaluated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from raysearch.core.formatting import count
from raysearch.core.mask import Mask

#: Of all statements about one search together.
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Separation:
    """How many masks are not significantly worse than the one that a search found, by paired differences of samples.

    The confidence holds for all comparisons together (Bonferroni). So the best of these masks, on all such text, is
    with that confidence the one that was found or among those that are not significantly worse.

    Args:
        reference: The mask that others are compared with: the one that was found; or its worst layer if `by_layer`.
        by_layer: Whether the search evaluated no other mask of as many layers. Then the layers that stay are compared,
            each alone, with the worst of those that are removed.
        n_others: The number of other masks.
        n_not_worse: The number of those that are not significantly worse than the reference.
        n_samples: The number of samples.
        samples_needed: About how many samples would separate the reference from the next best mask; None if they
            separate it already, or if both lose the same.
        below_dense: Whether a loss that is lower than the dense model's is so ``within noise`` or ``beyond noise``;
            None if it is not lower.
    """

    reference: Mask
    by_layer: bool
    n_others: int
    n_not_worse: int
    n_samples: int
    samples_needed: int | None
    below_dense: Literal["within noise", "beyond noise"] | None
    confidence: float = CONFIDENCE

    def __str__(self) -> str:
        on = f"on these {count(self.n_samples, 'sample')} ({self.confidence:.0%} confidence)"
        number = f"{self.n_not_worse:,}" if self.n_not_worse else "none"
        if self.by_layer:
            layer = f"layer {self.reference.layers[0]}, the costliest of those removed"
            sentence = f"Each alone, not significantly costlier than {layer}, {on}: {number} of the "
            sentence += f"{count(self.n_others, 'layer')} that stay"
        else:
            others = f"{count(self.n_others, 'other mask')} of {count(len(self.reference), 'layer')}"
            sentence = f"Not significantly worse than this mask {on}: {number} of the {others}"
        if self.samples_needed is None:
            return sentence
        return f"{sentence}; about {self.samples_needed:,} samples would separate the best from the next"
