"""The cuts of a mask of whole layers, with the layer before each of them, which may learn what the cut removes."""

from __future__ import annotations

from dataclasses import dataclass

from raysearch.core.cut import cuts_of
from raysearch.core.mask import Mask
from raysearch.errors import UserError


@dataclass(frozen=True)
class LayerCut:
    """A run of removed layers after a kept layer.

    Args:
        before: The kept layer before the run, as the dense model numbers it.
        last: The last layer of the run, as the dense model numbers it.
        block: The kept layer, as the pruned model numbers it.
    """

    before: int
    last: int
    block: int


def layer_cuts(mask: Mask, n_layers: int) -> tuple[LayerCut, ...]:
    """Return the cuts of a mask that a layer comes before, in the order of the model.

    Args:
        mask: The removed layers.
        n_layers: N, the layers of the dense model.

    Returns:
        The cuts; a run that begins with layer 0 is not among them.

    Raises:
        UserError: The mask has single halves of layers.
    """
    if mask.halves:
        raise UserError(
            f"recovery.loss=hidden needs whole layers, and {mask} has single halves; use recovery.loss=distill"
        )
    cuts = []
    for cut in cuts_of(mask, n_layers):
        if cut.before is not None:
            layer = cut.before.layer
            n_removed_before = sum(removed < layer for removed in mask.layers)
            cuts.append(LayerCut(layer, cut.removed[-1].layer, layer - n_removed_before))
    return tuple(cuts)
