"""A sweep as a picture and a table: every calibration a panel, over the same layers."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from raysearch.core import style
from raysearch.core.escaping import csv_cell
from raysearch.core.paths import write_files
from raysearch.generation.diagnostics import DESCRIBED
from raysearch.reporting.figures.picture import grid, png
from raysearch.reporting.tables import numbers
from raysearch.searching.sweep import Profile, Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BAR, _FIRST, _TIED = style.LINE, style.ORANGE, style.LIGHT_ORANGE
_MOST_RANGE = 8  # the largest bar over the middle one, beyond which an axis is logarithmic


def write_sweep(sweep: Sweep, n_remove: int, folder: Path) -> list[Path]:
    """Write ``sweep.png`` and ``sweep.csv``, and ``texts.csv`` where texts were generated, and return the files.

    Args:
        sweep: What to write.
        n_remove: M, how many layers to mark in each panel: those that are missed least.
        folder: Where; made if it does not exist.

    Raises:
        UserError: The folder cannot be written to.
    """
    frames = {"sweep.csv": _losses(sweep), "texts.csv": _texts(sweep)}
    written = {
        file: frame.to_csv(index=False, lineterminator="\n").encode() for file, frame in frames.items() if len(frame)
    }
    return write_files("--out", folder, {"sweep.png": png(sweep_figure(sweep, n_remove)), **written})


def _losses(sweep: Sweep) -> pd.DataFrame:
    """Return the losses with their standard errors, a row a layer after the dense model's."""
    columns: dict[str, Sequence[object]] = {"layer": ["dense", *range(len(sweep.calibrations[0].losses))]}
    for one in sweep.calibrations:
        columns[csv_cell(one.calibration)] = [one.dense_loss, *one.losses]
        columns[csv_cell(f"standard error of {one.calibration} over dense")] = [None, *one.standard_errors]
    return pd.DataFrame(columns)


def _texts(sweep: Sweep) -> pd.DataFrame:
    """Return what texts show, a row a calibration and layer; -1 is the dense model."""
    rows = [
        {"calibration": csv_cell(one.calibration), "layer": layer, **shown}
        for one in sweep.calibrations
        for layer, shown in enumerate(one.texts, start=-1)
    ]
    return pd.DataFrame(rows, columns=["calibration", "layer", *(key for key, *_ in DESCRIBED)], dtype=object)


def sweep_figure(sweep: Sweep, n_remove: int) -> Figure:
    """Draw the loss that each layer's removal adds, a panel for each calibration, with the cheapest layers marked.

    Whiskers are one standard error, by the choice of samples. Losses may grow by orders of magnitude where a layer is
    needed; then an axis is logarithmic beyond the middle value.
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
    middle = statistics.median(map(abs, added))
    if 0 < _MOST_RANGE * middle < max(added) and min(added) > -middle:
        axes.set_yscale("symlog", linthresh=middle)
    axes.axhline(0, color=style.GREY, lw=0.8)
    title = f"{profile.calibration} (dense {numbers.loss(profile.dense_loss)})"
    style.name_axes(axes, title, y=f"over dense\n({profile.measure.unit})")
    style.finish(axes, "y")


def _colours(profile: Profile, n_remove: int) -> list[str]:
    """By layer: whether it is among the first, or one of several that share the last of their places."""
    ranks = profile.ranks
    last = sorted(ranks)[min(n_remove, len(ranks)) - 1]
    all_fit = sum(rank <= last for rank in ranks) <= n_remove
    return [_BAR if rank > last else _FIRST if rank < last or all_fit else _TIED for rank in ranks]
