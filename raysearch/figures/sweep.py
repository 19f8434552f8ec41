"""The figure of a sweep: the loss that the removal of each layer, pair or half adds, a panel per calibration."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raysearch.core.space import LAYERS, Space
from raysearch.figures import style
from raysearch.figures.panels import grid
from raysearch.text import numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from raysearch.figures.picture import Figure

_BAR = style.LINE
_FIRST = style.ORANGE
_TIED = style.LIGHT_ORANGE
_MOST_RANGE = 8  # the largest bar over the median one, beyond which an axis is logarithmic


@dataclass(frozen=True)
class SweepPanel:
    """The losses without each site, such as a layer, on one calibration.

    Args:
        calibration: The calibration.
        unit: The unit of the losses.
        dense_loss: The loss of the dense model.
        losses: The loss without each site, [N]; None for a failure.
        standard_errors: The standard error of each loss minus the dense loss, [N]; None if there is none.
        ranks: The rank of each site by its loss, from 1, [N]; equal losses have equal ranks.
    """

    calibration: str
    unit: str
    dense_loss: float
    losses: Sequence[float | None]
    standard_errors: Sequence[float | None]
    ranks: Sequence[int]


def draw_sweep(model: str, panels: Sequence[SweepPanel], n_remove: int, labels: Sequence[str], space: Space) -> Figure:
    """Draw the loss that the removal of each site adds, a panel for each calibration, with the cheapest sites marked.

    Whiskers are one standard error, by the choice of samples. The removal of an essential site may add orders of
    magnitude more; then an axis is logarithmic beyond the median.

    Args:
        model: The model.
        panels: The panels.
        n_remove: M, the number of sites to mark in each panel.
        labels: The name of each site.
        space: The space of the sites.

    Returns:
        The figure.
    """
    from matplotlib.patches import Patch

    n_sites = len(labels)
    width = min(max(3.0 + 0.24 * n_sites, 8.0), 18.0)
    figure, all_axes = grid(len(panels), 2.1, width, columns=1, foot=1.2, sharex=True)
    for axes, panel in zip(all_axes, panels, strict=True):
        _draw(axes, panel, n_remove)
    all_axes[-1].set_xlabel(f"{space.noun} removed (0-based)", color=style.INK)
    step = 1 if n_sites <= 40 else 5 if space is LAYERS else 4  # of pairs, then, layers have labels
    rotation = 0 if max(map(len, labels)) < 4 else 90
    all_axes[-1].set_xticks(range(0, n_sites, step), labels[::step], rotation=rotation)
    all_axes[-1].set_xlim(-0.7, n_sites - 0.3)
    style.name_figure(figure, f"What each single {space.noun} is worth to {model}")
    key = [Patch(color=_FIRST, label=f"the {n_remove} missed least"), Patch(color=_BAR, label="others")]
    if any(_TIED in _colours(panel.ranks, n_remove) for panel in panels):
        key.insert(1, Patch(color=_TIED, label="tied for the last of these places"))
    figure.legend(handles=key, loc="outside lower right", ncols=3, frameon=False, fontsize=8, labelcolor=style.INK)
    return figure


def _draw(axes: Axes, panel: SweepPanel, n_remove: int) -> None:
    added = [0.0 if loss is None else loss - panel.dense_loss for loss in panel.losses]
    errors = [error or 0.0 for error in panel.standard_errors]
    whiskers = {"elinewidth": 0.8, "ecolor": style.GREY}
    colours = _colours(panel.ranks, n_remove)
    axes.bar(range(len(added)), added, color=colours, width=0.8, yerr=errors, error_kw=whiskers)
    failed = [index for index, loss in enumerate(panel.losses) if loss is None]
    axes.plot(failed, [0] * len(failed), "x", color=style.INK)
    median = statistics.median(map(abs, added))
    if 0 < _MOST_RANGE * median < max(added) and min(added) > -median:
        axes.set_yscale("symlog", linthresh=median)
    axes.axhline(0, color=style.GREY, lw=0.8)
    title = f"{panel.calibration} (dense {numbers.loss(panel.dense_loss)})"
    style.name_axes(axes, title, y=f"over dense\n({panel.unit})")
    style.finish(axes, "y")


def _colours(ranks: Sequence[int], n_remove: int) -> list[str]:
    """Return the colour of each site's bar: among the first M, tied for the last of these places, or neither."""
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
