"""Which layers go: every searcher's mask beside the others', and how similar each two masks are.

Source: Kim et al. 2026 (arXiv 2604.24938), Figure 1.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pandas as pd

from raysearch.core.mask import Mask
from raysearch.reporting.figures.style import GREY, INK, PALE, TEXT, TITLE, Palette, Picture, legend, short
from raysearch.reporting.stats.agreement import masks_of, similarity
from raysearch.reporting.stats.frame import Setting, settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_NUMBERED = 18
_LABEL = 22
_TWO_COLUMNS = 36  # layers up to which two maps stand side by side


def mask_pictures(frame: pd.DataFrame, n_layers: Mapping[str, int], palette: Palette) -> list[Picture]:
    """For each model the maps of its settings: layers across, searchers down."""
    panels: dict[str, list[tuple[Setting, Mapping[str, Sequence[Mask]]]]] = {}
    for setting, cells in settings(frame):
        masks = masks_of(cells).droplevel(0).to_dict()
        if masks:
            panels.setdefault(setting.model, []).append((setting, masks))
    found = []
    for number, (model, parts) in enumerate(panels.items(), 1):
        ordered = sorted(parts, key=lambda part: part[0].remove)
        found.append(_mask_picture(f"masks_{number}", model, ordered, n_layers[model], palette))
    return found


def similarity_pictures(frame: pd.DataFrame) -> list[Picture]:
    """For each model and M the similarity of every two masks, all calibrations together."""
    panels: dict[tuple[str, int], list[tuple[str, str, Sequence[Mask]]]] = {}
    for setting, cells in settings(frame):
        for searcher, masks in masks_of(cells).droplevel(0).items():
            panels.setdefault((setting.model, setting.remove), []).append((setting.calibration, searcher, masks))
    by_model: dict[str, list[tuple[int, list[tuple[str, str, Sequence[Mask]]]]]] = {}
    for (model, remove), rows in panels.items():
        if len(rows) > 1:
            by_model.setdefault(model, []).append((remove, rows))
    return [
        _similarity_picture(f"similarity_{number}", model, sorted(parts, key=lambda part: part[0]))
        for number, (model, parts) in enumerate(by_model.items(), 1)
    ]


def _mask_picture(
    name: str, model: str, panels: list[tuple[Setting, Mapping[str, Sequence[Mask]]]], n_layers: int, palette: Palette
) -> Picture:
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    columns = 2 if len(panels) > 1 and n_layers <= _TWO_COLUMNS else 1
    rows = -(-len(panels) // columns)
    searchers = list(dict.fromkeys(name for _, masks in panels for name in masks))
    tallest = len(searchers) + 1.4
    figure = Figure(figsize=(11.0, rows * (0.23 * tallest + 0.75) + 0.35), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for place, (axes, (setting, masks)) in enumerate(zip(grid.flat, panels, strict=False)):
        _draw_masks(axes, setting, {name: masks.get(name, ()) for name in searchers}, n_layers, palette)
        if place % columns:
            axes.set_yticklabels([])  # the same as its neighbour's
    seeded = any(len(of_searcher) > 1 for _, masks in panels for of_searcher in masks.values())
    handles = [Patch(color=PALE, label="kept"), Patch(color=GREY, label="share of the searchers that remove it")]
    if seeded:
        handles.append(Patch(color="#9cc3de", label="paler colour: removed with some seeds only"))
    legend(figure, handles)
    caption = (
        "A coloured block is a layer that the searcher removes, in the searcher's colour; layer 0 is next to the "
        "embedding. The lowest row is all searchers together."
    )
    alt = "; ".join(
        f"{setting.calibration}, M = {setting.remove}: "
        + ", ".join(f"{searcher} removes {masks[0]}" for searcher, masks in by_searcher.items())
        for setting, by_searcher in panels
    )
    return Picture(name, f"{model}: layers removed", caption, f"Map of removed layers. {alt}", figure)


def _draw_masks(
    axes: Axes, setting: Setting, masks: Mapping[str, Sequence[Mask]], n_layers: int, palette: Palette
) -> None:
    foot = len(masks) + 0.25
    shares = {
        name: {layer: sum(layer in mask for mask in of) / len(of) for layer in range(n_layers)}
        for name, of in masks.items()
        if of
    }
    for row, name in enumerate(masks):
        if name in shares:
            _draw_row(axes, row, shares[name], palette.colours[name], floor=0.35)
        else:
            axes.text(0, row, "no mask", fontsize=TEXT, color=GREY, va="center")
    together = {layer: sum(of[layer] for of in shares.values()) / len(shares) for layer in range(n_layers)}
    _draw_row(axes, foot, together, GREY, floor=0.12)
    axes.set_yticks([*range(len(masks)), foot], [*(short(name, 32) for name in masks), "all together"])
    axes.set_xticks(range(0, n_layers, 1 if n_layers <= 16 else 2 if n_layers <= 24 else 4))
    axes.set_xlim(-0.5, n_layers - 0.5)
    axes.set_ylim(foot + 0.55, -0.55)
    axes.set_title(f"{short(setting.calibration, 34)}, M = {setting.remove}", fontsize=TITLE, color=INK, loc="left")
    axes.tick_params(length=0, colors=INK, labelsize=TEXT)
    axes.set_xlabel("layer", fontsize=TEXT, color=INK)
    axes.spines[:].set_visible(False)


def _draw_row(axes: Axes, row: float, shares: Mapping[int, float], colour: str, floor: float) -> None:
    """A row of blocks; a layer that only some of the masks remove is paler, but no paler than `floor`."""
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    blocks = [Rectangle((layer - 0.45, row - 0.4), 0.9, 0.8) for layer in shares]
    colours = [_blend(colour, floor + (1 - floor) * share) if share else _blend(colour, 0) for share in shares.values()]
    axes.add_collection(PatchCollection(blocks, facecolors=colours, linewidths=0))


def _blend(colour: str, strength: float) -> tuple[float, float, float]:
    from matplotlib.colors import to_rgb

    red, green, blue = (
        strength * full + (1 - strength) * pale for full, pale in zip(to_rgb(colour), to_rgb(PALE), strict=True)
    )
    return red, green, blue


def _similarity_picture(
    name: str, model: str, panels: list[tuple[int, list[tuple[str, str, Sequence[Mask]]]]]
) -> Picture:
    from matplotlib.figure import Figure

    most = max(len(rows) for _, rows in panels)
    columns = 2 if len(panels) > 1 and most <= _MOST_NUMBERED else 1
    lines = -(-len(panels) // columns)
    side = min(0.3, 4.0 / most) if columns > 1 else min(0.33, 7.5 / most)  # inches of a square
    names = max(len(short(name, _LABEL)) for _, rows in panels for _, name, _ in rows) * 0.07
    width = columns * side * most + (1 if columns == 1 else 2) * names + 1.5
    figure = Figure(figsize=(min(max(width, 6.0), 11.0), lines * (side * most + 0.75)), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for place, (axes, (remove, rows)) in enumerate(zip(grid.flat, panels, strict=False)):
        mesh = _draw_similarity(axes, remove, rows)
        if place % columns and [row[:2] for row in rows] == [row[:2] for row in panels[place - 1][1]]:
            axes.set_yticklabels([])  # the same as its neighbour's
    bar = figure.colorbar(mesh, ax=list(grid.flat[: len(panels)]), shrink=0.6, aspect=30, pad=0.02)
    bar.set_label("Jaccard similarity", fontsize=TEXT, color=INK)
    bar.ax.tick_params(labelsize=TEXT, colors=INK)
    bar.outline.set_visible(False)
    caption = (
        "Each square compares two masks: 1 if they remove the same layers, 0 if they share none; with several seeds "
        "the mean. Blocks on the diagonal are searchers under one calibration; the others compare calibrations."
    )
    alt = f"Matrix of Jaccard similarities between the masks of {model}; the tables below give their means and ranges."
    return Picture(name, f"{model}: similarity of masks", caption, alt, figure)


def _draw_similarity(axes: Axes, remove: int, rows: list[tuple[str, str, Sequence[Mask]]]):  # type: ignore[no-untyped-def]
    import numpy as np

    size = len(rows)
    table = np.array([[similarity(a, b) for *_, b in rows] for *_, a in rows])
    mesh = axes.pcolormesh(table, cmap="Blues", vmin=0, vmax=1, edgecolors="white", linewidth=0.6)
    if size <= _MOST_NUMBERED:
        for row, column in itertools.product(range(size), repeat=2):
            value = table[row, column]
            text = "1" if value > 0.995 else f"{value:.2f}".removeprefix("0")
            axes.text(
                column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=7.5,
                color="white" if value > 0.55 else INK,
            )  # fmt: skip
    axes.set_yticks(np.arange(size) + 0.5, [short(name, _LABEL) for _, name, _ in rows])
    axes.set_xticks([])
    start = 0
    for calibration, members in itertools.groupby(rows, key=lambda row: row[0]):
        end = start + len(list(members))
        if start:
            axes.axhline(start, color=INK, lw=1.4)
            axes.axvline(start, color=INK, lw=1.4)
        axes.text((start + end) / 2, -0.25, short(calibration, 24), ha="center", va="bottom", fontsize=TEXT, color=INK)
        start = end
    axes.set_ylim(size, 0)
    axes.set_title(f"M = {remove}", fontsize=TITLE, color=INK, loc="left", pad=18)
    axes.tick_params(length=0, labelsize=TEXT, colors=INK)
    axes.spines[:].set_visible(False)
    axes.set_aspect("equal")
    return mesh
