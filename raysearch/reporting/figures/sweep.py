"""A sweep as a picture and tables: a panel per calibration, over the same layers."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from raysearch.core import style
from raysearch.core.paths import write_files
from raysearch.generation.diagnostics import DESCRIBED
from raysearch.reporting.figures.picture import grid, png
from raysearch.searching.sweep import Profile, Sweep
from raysearch.text import numbers
from raysearch.text.escaping import csv_cell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BAR = style.LINE
_FIRST = style.ORANGE
_TIED = style.LIGHT_ORANGE
_MOST_RANGE = 8  # the largest bar over the median one, beyond which an axis is logarithmic


def write_sweep(sweep: Sweep, n_remove: int, folder: Path) -> list[Path]:
    """Write ``sweep.png`` and ``sweep.csv``, and ``texts.csv`` if texts were generated, and return the files.

    Args:
        sweep: The sweep.
        n_remove: M, the number of layers to mark in each panel: those whose removal adds the least loss.
        folder: The folder of the files; created if it does not exist.

    Raises:
        UserError: The folder cannot be written to.
    """
    frames = {"sweep.csv": _losses(sweep), "texts.csv": _texts(sweep)}
    written = {
        file: frame.to_csv(index=False, lineterminator="\n").encode() for file, frame in frames.items() if len(frame)
    }
    return write_files("--out", folder, {"sweep.png": png(sweep_figure(sweep, n_remove)), **written})


def _losses(sweep: Sweep) -> pd.DataFrame:
    """Return the losses with their standard errors: the dense model's row, then a row per layer."""
    columns: dict[str, Sequence[object]] = {"layer": ["dense", *range(len(sweep.calibrations[0].losses))]}
    for profile in sweep.calibrations:
        columns[csv_cell(profile.calibration)] = [profile.dense_loss, *profile.losses]
        columns[csv_cell(f"standard error of {profile.calibration} over dense")] = [None, *profile.standard_errors]
    return pd.DataFrame(columns)


def _texts(sweep: Sweep) -> pd.DataFrame:
    """Return the descriptions of texts, a row per calibration and layer; layer -1 is the dense model."""
    rows = [
        {"calibration": csv_cell(profile.calibration), "layer": layer, **description}
        for profile in sweep.calibrations
        for layer, description in enumerate(profile.texts, start=-1)
    ]
    return pd.DataFrame(rows, columns=["calibration", "layer", *(key for key, *_ in DESCRIBED)], dtype=object)


def sweep_figure(sweep: Sweep, n_remove: int) -> Figure:
    """Draw the loss that the removal of each layer adds, a panel for each calibration, with the cheapest layers marked.

    Whiskers are one standard error, by the choice of samples. The removal of an essential layer may add orders of
    magnitude more; then an axis is logarithmic beyond the median.

    Args:
        sweep: The sweep.
        n_remove: M, the number of layers to mark in each panel.
    """
    from matplotlib.patches import Patch

    n_layers = len(sweep.calibrations[0].losses)
    width = min(max(3.0 + 0.24 * n_layers, 8.0), 18.0)
    figure, panels = grid(len(sweep.calibrations), 2.1, width, columns=1, foot=1.2, sharex=True)
    for axes, profile in zip(panels, sweep.calibrations, strict=True):
        _draw(axes, profile, n_remove)
    panels[-1].set_xlabel("layer removed (0-based)", color=style.INK)
    panels[-1].set_xticks(range(0, n_layers, 1 if n_layers <= 40 else 5))
    panels[-1].set_xlim(-0.7, n_layers - 0.3)
    style.name_figure(figure, f"What each single layer is worth to {sweep.model}")
    key = [Patch(color=_FIRST, label=f"the {n_remove} missed least"), Patch(color=_BAR, label="others")]
    if any(_TIED in _colours(profile, n_remove) for profile in sweep.calibrations):
        key.insert(1, Patch(color=_TIED, label="tied for the last of these places"))
    figure.legend(handles=key, loc="outside lower right", ncols=3, frameon=False, fontsize=8, labelcolor=style.INK)
    return figure


def _draw(axes: Axes, profile: Profile, n_remove: int) -> None:
    added = [0.0 if loss is None else loss - profile.dense_loss for loss in profile.losses]
    errors = [error or 0.0 for error in profile.standard_errors]
    whiskers = {"elinewidth": 0.8, "ecolor": style.GREY}
    axes.bar(range(len(added)), added, color=_colours(profile, n_remove), width=0.8, yerr=errors, error_kw=whiskers)
    failed = [layer for layer, loss in enumerate(profile.losses) if loss is None]
    axes.plot(failed, [0] * len(failed), "x", color=style.INK)
    median = statistics.median(map(abs, added))
    if 0 < _MOST_RANGE * median < max(added) and min(added) > -median:
        axes.set_yscale("symlog", linthresh=median)
    axes.axhline(0, color=style.GREY, lw=0.8)
    title = f"{profile.calibration} (dense {numbers.loss(profile.dense_loss)})"
    style.name_axes(axes, title, y=f"over dense\n({profile.measure.unit})")
    style.finish(axes, "y")


def _colours(profile: Profile, n_remove: int) -> list[str]:
    """Return the colour of each layer's bar: among the first M, tied for the last of these places, or neither."""
    ranks = profile.ranks
    last = sorted(ranks)[min(n_remove, len(ranks)) - 1]
    all_fit = sum(rank <= last for rank in ranks) <= n_remove
    colour_of_last = _FIRST if all_fit else _TIED
    colours = []
    for rank in ranks:
        if rank > last:
            colours.append(_BAR)
        else:
            colours.append(_FIRST if rank < last else colour_of_last)
    return colours
