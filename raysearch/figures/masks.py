"""The figure of the layers and halves that each searcher removes.

Source: Kim et al. 2026 (arXiv 2604.24938), Figure 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from raysearch.core.mask import PARTS, Half, Mask
from raysearch.core.site import Sites
from raysearch.figures import style
from raysearch.figures.palette import Palette
from raysearch.figures.panels import grid
from raysearch.figures.picture import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TWO_COLUMNS = 36  # the most layers with which two maps stand side by side


@dataclass(frozen=True)
class MaskMap:
    """The masks of a calibration and M, by searcher."""

    calibration: str
    remove: int
    masks: Mapping[str, Sequence[Mask]]


def mask_picture(
    sites: Mapping[str, Sites], palette: Palette, name: str, model: str, maps: Sequence[MaskMap]
) -> Picture:
    """Draw a map per calibration and M: layers as columns, searchers as rows.

    Args:
        sites: The layers of each model.
        palette: The looks of the searchers.
        name: The name of the picture.
        model: The model.
        maps: The maps.

    Returns:
        The picture, with its title and caption.
    """
    from matplotlib.patches import Patch

    ordered = sorted(maps, key=lambda mask_map: mask_map.remove)
    searchers = list(dict.fromkeys(searcher for mask_map in ordered for searcher in mask_map.masks))
    columns = 2 if len(sites[model]) <= _TWO_COLUMNS else 1
    figure, all_axes = grid(len(maps), 0.23 * (len(searchers) + 1.4) + 0.75, 11.0, columns, foot=0.35)
    for index, (axes, mask_map) in enumerate(zip(all_axes, ordered, strict=True)):
        masks = {searcher: mask_map.masks.get(searcher, ()) for searcher in searchers}
        _draw_masks(axes, masks, len(sites[model]), palette)
        style.name_axes(axes, f"{style.short(mask_map.calibration, 34)}, M = {mask_map.remove}", "layer")
        if index % columns:
            axes.set_yticklabels([])  # the same labels as those of the map to the left
    key = {"kept": style.PALE, "share of the searchers that remove it": style.GREY}
    if any(len(masks) > 1 for mask_map in maps for masks in mask_map.masks.values()):
        key["paler colour: removed in some draws or seeds only"] = style.LIGHT_BLUE
    style.legend(figure, [Patch(color=colour, label=label) for label, colour in key.items()])
    has_halves = any(mask.halves for mask_map in maps for masks in mask_map.masks.values() for mask in masks)
    halves = "The upper half of a block is the attention of the layer, the lower half its MLP. " if has_halves else ""
    caption = (
        "A coloured block is a layer that the searcher removes, in the searcher's colour. Layer 0 is next to the "
        f"embedding. {halves}The lowest row shows all searchers together."
    )
    return Picture(name, f"{model}: layers removed", caption, figure)


def _draw_masks(axes: Axes, masks: Mapping[str, Sequence[Mask]], n_layers: int, palette: Palette) -> None:
    """Draw a row for each searcher. If masks have single halves, a row has attentions above, and MLPs below."""
    has_halves = any(mask.halves for searcher_masks in masks.values() for mask in searcher_masks)
    parts = PARTS if has_halves else PARTS[:1]
    row_shares = []
    foot = len(masks) + 0.25
    for row, (searcher, searcher_masks) in enumerate(masks.items()):
        if searcher_masks:
            is_removed = [
                [[mask.removes(Half(layer, part)) for layer in range(n_layers)] for part in parts]
                for mask in searcher_masks
            ]
            shares = np.mean(is_removed, axis=0)
            row_shares.append(shares)
            _draw_row(axes, row, shares, palette.colours[searcher], floor=0.35)
        else:
            axes.text(0, row, "no mask", fontsize=style.TEXT, color=style.GREY, va="center")
    _draw_row(axes, foot, np.mean(row_shares, axis=0), style.GREY, floor=0.12)
    axes.vlines(np.arange(n_layers - 1) + 0.5, -0.5, foot + 0.5, color=style.WHITE, lw=1.4)
    axes.set_yticks([*range(len(masks)), foot], [*(style.short(name, 32) for name in masks), "all together"])
    axes.set_xticks(range(0, n_layers, _tick_step(n_layers)))
    axes.set_xlim(-0.5, n_layers - 0.5)
    axes.set_ylim(foot + 0.55, -0.55)
    style.bare(axes)


def _tick_step(n_layers: int) -> int:
    if n_layers <= 16:
        return 1
    return 2 if n_layers <= 24 else 4


def _draw_row(axes: Axes, row: float, shares: npt.NDArray[np.float64], colour: str, floor: float) -> None:
    """Draw a row of blocks; a layer that only some of the masks remove is paler, but no paler than `floor`."""
    colours = [
        [style.blend(colour, floor + (1 - floor) * share if share else 0) for share in of_part] for of_part in shares
    ]
    extent = (-0.5, shares.shape[1] - 0.5, row + 0.4, row - 0.4)
    axes.imshow(colours, extent=extent, aspect="auto", interpolation="none")  # as an image, which is small
