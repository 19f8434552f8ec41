"""Which layers go: every searcher's mask beside the others', and how similar each two masks are.

Source: Kim et al. 2026 (arXiv 2604.24938), Figure 1.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from raysearch.core import style
from raysearch.core.mask import Mask
from raysearch.reporting.figures.picture import Palette, Picture, grid, pictures, write
from raysearch.reporting.stats.agreement import masks_of, similarity
from raysearch.reporting.stats.frame import Setting, panels, settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_NUMBERED = 18
_LABEL = 22
_TWO_COLUMNS = 36  # layers up to which two maps stand side by side

_Map = tuple[Setting, Mapping[str, Sequence[Mask]]]
_Matrix = tuple[int, pd.Series]  # M, and the masks by calibration and searcher


def mask_pictures(frame: pd.DataFrame, n_layers: Mapping[str, int], palette: Palette) -> list[Picture]:
    """For each model the maps of its settings: layers across, searchers down."""
    maps = ((setting, masks_of(cells).droplevel("calibration").to_dict()) for setting, cells in settings(frame))
    return pictures("masks", ((one[0].model, one) for one in maps if one[1]), partial(_mask_picture, n_layers, palette))


def similarity_pictures(frame: pd.DataFrame) -> list[Picture]:
    """For each model and M the similarity of every two masks, all calibrations together."""
    matrices = ((panel.model, (panel.remove, masks_of(cells))) for panel, cells in panels(frame))
    return pictures("similarity", (one for one in matrices if len(one[1][1]) > 1), _similarity_picture)


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
    alt = "; ".join(
        f"{setting.calibration}, M = {setting.remove}: "
        + ", ".join(f"{name} removes {' or '.join(map(str, dict.fromkeys(of)))}" for name, of in masks.items())
        for setting, masks in ordered
    )
    return Picture(name, f"{model}: layers removed", caption, f"Map of removed layers. {alt}", figure)


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


def _similarity_picture(name: str, model: str, matrices: list[_Matrix]) -> Picture:
    most = max(len(masks) for _, masks in matrices)
    columns = 2 if len(matrices) > 1 and most <= _MOST_NUMBERED else 1
    side = min(0.3, 4.0 / most) if columns > 1 else min(0.33, 7.5 / most)  # inches of a square
    names = max(len(style.short(searcher, _LABEL)) for _, masks in matrices for _, searcher in masks.index) * 0.07
    width = min(max(columns * (side * most + names) + 1.5, 6.0), 11.0)
    figure, places = grid(len(matrices), side * most + 0.75, width, columns, foot=0)
    for place, (axes, (remove, masks)) in enumerate(zip(places, matrices, strict=True)):
        mesh = _draw_similarity(axes, masks)
        axes.set_title(f"M = {remove}", fontsize=style.TITLE, color=style.INK, loc="left", pad=18)
        if place % columns and masks.index.equals(matrices[place - 1][1].index):
            axes.set_yticklabels([])  # the same as its neighbour's
    bar = figure.colorbar(mesh, ax=list(places), shrink=0.6, aspect=30, pad=0.02)
    bar.set_label("Jaccard similarity", fontsize=style.TEXT, color=style.INK)
    bar.ax.tick_params(labelsize=style.TEXT, colors=style.INK)
    bar.outline.set_visible(False)
    caption = (
        "Each square compares two masks: 1 if they remove the same layers, 0 if they share none; with several draws "
        "or seeds the mean. Blocks on the diagonal are searchers under one calibration; the others compare two."
    )
    alt = f"Matrix of Jaccard similarities between the masks of {model}; the tables below give their means and ranges."
    return Picture(name, f"{model}: similarity of masks", caption, alt, figure)


def _draw_similarity(axes: Axes, masks: pd.Series) -> Any:
    """Draw the matrix of the masks' similarities, and return it for the colour bar."""
    size = len(masks)
    table = np.array([[similarity(a, b) for b in masks] for a in masks])
    np.fill_diagonal(table, [similarity(one) if len(one) > 1 else 1.0 for one in masks])
    # As an image, which is small where there are thousands of squares.
    mesh = axes.imshow(table, cmap=style.SIMILARITIES, vmin=0, vmax=1, extent=(0, size, size, 0), interpolation="none")
    axes.hlines(range(1, size), 0, size, color=style.WHITE, lw=0.6)
    axes.vlines(range(1, size), 0, size, color=style.WHITE, lw=0.6)
    if size <= _MOST_NUMBERED:
        for (row, column), value in np.ndenumerate(table):
            text = "1" if value > 0.995 else f"{value:.2f}".removeprefix("0")
            colour = style.WHITE if value > 0.55 else style.INK
            write(axes, column + 0.5, row + 0.5, text, fontsize=7.5, color=colour, in_layout=False)  # within the axes
    axes.set_yticks(np.arange(size) + 0.5, [style.short(searcher, _LABEL) for _, searcher in masks.index])
    axes.set_xticks([])
    start = 0
    for calibration, members in itertools.groupby(calibration for calibration, _ in masks.index):
        end = start + len(list(members))
        if start:
            axes.axhline(start, color=style.INK, lw=1.4)
            axes.axvline(start, color=style.INK, lw=1.4)
        write(axes, (start + end) / 2, -0.25, style.short(calibration, 24), va="bottom")
        start = end
    axes.set_ylim(size, 0)
    axes.set_aspect("equal")
    style.bare(axes)
    return mesh
