"""How well the samples of a search separate its mask from the other masks that it evaluated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from raysearch.core.mask import Mask
from raysearch.core.space import LAYERS, Space
from raysearch.text.numbers import count

#: The confidence that all statements about one search are right together.
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Separation:
    """How many masks are not significantly worse than the mask of a search, by paired differences of samples.

    The confidence holds for all comparisons together (Bonferroni). So with that confidence, the mask that is best on
    all text of this kind is the mask of the search, or one of those that are not significantly worse.

    Args:
        reference: The mask that others are compared with: the mask of the search; or its worst layer, group of layers,
            pair or half, if `by_layer`.
        by_layer: Whether the search evaluated no other mask of the same size. Then each layer that stays is compared,
            by its loss when removed alone, with the worst removed layer; so is each group, pair or half.
        n_others: The number of other masks.
        n_not_worse: The number of other masks that are not significantly worse than the reference.
        n_samples: The number of samples.
        samples_needed: About how many samples would separate the reference from the next best mask; None if the
            samples separate it already, or if both losses are equal.
        below_dense: If the loss is lower than the dense model's, whether the difference is ``within noise`` or
            ``beyond noise``; else None.
        confidence: The confidence of all comparisons together.
        space: What the masks remove.
    """

    reference: Mask
    by_layer: bool
    n_others: int
    n_not_worse: int
    n_samples: int
    samples_needed: int | None
    below_dense: Literal["within noise", "beyond noise"] | None
    confidence: float = CONFIDENCE
    space: Space = LAYERS

    def __str__(self) -> str:
        basis = f"on these {count(self.n_samples, 'sample')} ({self.confidence:.0%} confidence)"
        number = f"{self.n_not_worse:,}" if self.n_not_worse else "none"
        if self.by_layer:
            first, *others = self.reference.parts
            noun, plural = self.space.noun, self.space.plural
            name = str(self.reference) if others else str(first)
            if self.space is LAYERS and others:
                noun, plural = "group", "groups"
            sentence = f"Each alone, not significantly costlier than {noun} {name}, the costliest of those removed, "
            sentence += f"{basis}: {number} of the {count(self.n_others, noun, plural)} that stay"
        else:
            size = self.space.count(self.space.size_of(self.reference))
            other_masks = f"{count(self.n_others, 'other mask')} of {size}"
            sentence = f"Not significantly worse than this mask {basis}: {number} of the {other_masks}"
        if self.samples_needed is None:
            return sentence
        return f"{sentence}; about {self.samples_needed:,} samples would separate the best from the next"
