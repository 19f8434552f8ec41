"""Scales: the factors by which the hidden state is multiplied at the cuts of a mask.

The layers that stay expect a state of the size that the removed layers would have made of it. A run of removed layers
a … b - 1 leaves out what makes h_b of h_a, so the state is multiplied by

    s(a, b) = mean of |h_b| / |h_a| over the tokens of each sample, then over samples

in the dense model (`Statistic.NORM_RATIO`), before layer b runs. A factor depends on the cut and on the dense model
alone, never on the mask or on how a search came to it. The factors of several cuts multiply, since each cut multiplies
the state once. A cut at the end of the model has no factor: the final norm would remove it.

Source: Prune&Comp (arXiv 2507.18212), which compensates the gap of magnitudes at a cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from raysearch.core.cut import cuts_of
from raysearch.core.mask import Mask

#: How masks are repaired before they are evaluated: not at all, or by the scales of their cuts.
Repair = Literal["none", "scale"]
REPAIRS: tuple[Repair, ...] = get_args(Repair)


@dataclass(frozen=True)
class Scale:
    """The factor of a cut.

    Args:
        start: The first layer of the run of removed layers, 0-based.
        stop: The first layer that stays after the run; its input is multiplied.
        factor: The factor.
    """

    start: int
    stop: int
    factor: float

    def __str__(self) -> str:
        return f"{Mask.of(*range(self.start, self.stop))} ×{self.factor:.4g}"


@dataclass(frozen=True)
class Scales:
    """The factors of the cuts of some masks.

    Args:
        n_layers: N, the layers of the dense model.
        factors: The factor of each cut that one of the masks has.
    """

    n_layers: int
    factors: tuple[Scale, ...]

    @classmethod
    def of_masks(cls, masks: Iterable[Mask], ratios: npt.NDArray[np.float64]) -> Scales:
        """Return the factors of the cuts of masks of whole layers.

        Args:
            masks: The masks.
            ratios: The mean of |h_b| / |h_a| by a and b, float64, [N + 1, N + 1].

        Returns:
            The factor of each cut that one of the masks has.
        """
        n_layers = len(ratios) - 1
        places = sorted({place for mask in masks for place in _places(mask, n_layers)})
        return cls(n_layers, tuple(Scale(start, stop, float(ratios[start, stop])) for start, stop in places))

    def of_mask(self, mask: Mask) -> tuple[Scale, ...]:
        """Return the factors of the cuts of one of the masks, in the order of the model."""
        return tuple(self._by_place[place] for place in _places(mask, self.n_layers))

    @cached_property
    def _by_place(self) -> Mapping[tuple[int, int], Scale]:
        return {(scale.start, scale.stop): scale for scale in self.factors}


def _places(mask: Mask, n_layers: int) -> Iterator[tuple[int, int]]:
    """Yield the start and the stop of each cut that has a factor."""
    assert not mask.halves, f"{mask} has halves, and factors are those of layers"
    for cut in cuts_of(mask, n_layers):
        if cut.after is not None:
            yield cut.removed[0].layer, cut.after.layer


def factors_of(scales: Iterable[Scale]) -> dict[int, float]:
    """Return the factors of the cuts of a mask, by the layer whose input is multiplied."""
    return {scale.stop: scale.factor for scale in scales}


def scales_text(scales: Iterable[Scale]) -> str:
    """Return the factors of the cuts of a mask for people: ``{13,14} ×1.088, {17} ×1.021``."""
    return ", ".join(map(str, scales))
