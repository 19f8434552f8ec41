"""Which layers go: every searcher's mask beside the others'.

Source: Kim et al. 2026 (arXiv 2604.24938), Figure 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pandas as pd

from raysearch.core import style
from raysearch.core.mask import Mask
from raysearch.reporting.figures.picture import Palette, Picture, grid, pictures
from raysearch.reporting.stats.agreement import masks_of
from raysearch.reporting.stats.frame import Setting, settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TWO_COLUMNS = 36  # layers up to which two maps stand side by side

_Map = tuple[Setting, Mapping[str, Sequence[Mask]]]


def mask_pictures(frame: pd.DataFrame, n_layers: Mapping[str, int], palette: Palette) -> list[Picture]:
    """For each model the maps of its settings: layers across, searchers down."""
    maps = ((setting, masks_of(cells, "searcher").to_dict()) for setting, cells in settings(frame))
    return pictures("masks", ((one[0].model, one) for one in maps if one[1]), partial(_mask_picture, n_layers, palette))


def _mask_picture(n_layers: Mapping[str, int], palette: Palette, name: str, model: str, maps: list[_Map]) -> Picture:
    from matplotlib.patches import Patch

    ordered = sorted(maps, key=lambda one: one[0].remove)
    searchers = list(dict.fromkeys(name for _, masks in ordered for name in masks))
    columns = 2 if n_layers[model] <= _TWO_COLUMNS else 1
    figure, places = grid(len(maps), 0.23 * (len(searchers) + 1.4) + 0.75, 11.0, columns, foot=0.35)
    for place, (axes, (setting, masks)) in enumerate(zip(places, ordered, strict=True)):
        _draw_masks(axes, {name: masks.get(name, ()) for name in searchers}, n_layers[model], palette)
        style.name_axes(axes, f"{style.short(setting.calibration, 34)}, M = {setting.remove}", "layer")
        if place % columns:
            axes.set_yticklabels([])  # the same as its neighbour's
    key = {"kept": style.PALE, "share of the searchers that remove it": style.GREY}
    if any(len(of_searcher) > 1 for _, masks in maps for of_searcher in masks.values()):
        key["paler colour: removed in some draws or seeds only"] = style.LIGHT_BLUE
    style.legend(figure, [Patch(color=colour, label=label) for label, colour in key.items()])
    caption = (
        "A coloured block is a layer that the searcher removes, in the searcher's colour; layer 0 is next to the "
        "embedding. The lowest row is all searchers together."
    )
    return Picture(name, f"{model}: layers removed", caption, figure)


def _draw_masks(axes: Axes, masks: Mapping[str, Sequence[Mask]], n_layers: int, palette: Palette) -> None:
    known, foot = [], len(masks) + 0.25
    for row, (name, found) in enumerate(masks.items()):
        if found:
            known.append(np.mean([[layer in mask for layer in range(n_layers)] for mask in found], axis=0))
            _draw_row(axes, row, known[-1], palette.colours[name], floor=0.35)
        else:
            axes.text(0, row, "no mask", fontsize=style.TEXT, color=style.GREY, va="center")
    _draw_row(axes, foot, np.mean(known, axis=0), style.GREY, floor=0.12)
    axes.vlines(np.arange(n_layers - 1) + 0.5, -0.5, foot + 0.5, color=style.WHITE, lw=1.4)
    axes.set_yticks([*range(len(masks)), foot], [*(style.short(name, 32) for name in masks), "all together"])
    axes.set_xticks(range(0, n_layers, 1 if n_layers <= 16 else 2 if n_layers <= 24 else 4))
    axes.set_xlim(-0.5, n_layers - 0.5)
    axes.set_ylim(foot + 0.55, -0.55)
    style.bare(axes)


def _draw_row(axes: Axes, row: float, shares: npt.NDArray[np.float64], colour: str, floor: float) -> None:
    """A row of blocks; a layer that only some of the masks remove is paler, but no paler than `floor`."""
    colours = [style.blend(colour, floor + (1 - floor) * share if share else 0) for share in shares]
    extent = (-0.5, len(shares) - 0.5, row + 0.4, row - 0.4)
    axes.imshow([colours], extent=extent, aspect="auto", interpolation="none")  # as an image, which is small
