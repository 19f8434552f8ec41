"""The figure of loss against the cost of a search.

Source: Kim et al. 2026 (arXiv 2604.24938), Table 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raysearch.figures import style
from raysearch.figures.palette import Palette
from raysearch.figures.panels import grid, log_scale
from raysearch.figures.picture import Picture


@dataclass(frozen=True)
class CostPoint:
    """A searcher of a setting.

    Args:
        searcher: The searcher.
        cost: The layer-forwards of a search alone.
        loss: Its mean loss.
        noise: The difference from the best loss that noise alone explains; None if it is not known.
        is_hollow: Whether it is significantly worse than the best, or this is not known.
    """

    searcher: str
    cost: float
    loss: float
    noise: float | None
    is_hollow: bool


@dataclass(frozen=True)
class CostPanel:
    """The searchers of a calibration and M, best first."""

    calibration: str
    remove: int
    points: Sequence[CostPoint]


def cost_picture(palette: Palette, name: str, model: str, panels: Sequence[CostPanel]) -> Picture:
    """Draw the loss against the cost of a search: a panel per setting, a point per searcher.

    Args:
        palette: The looks of the searchers.
        name: The name of the picture.
        model: The model.
        panels: The panels.

    Returns:
        The picture, with its title and caption.
    """
    from matplotlib.lines import Line2D

    figure, all_axes = grid(len(panels), 2.8)
    ordered = sorted(panels, key=lambda panel: panel.remove)
    for axes, panel in zip(all_axes, ordered, strict=True):
        bottom, top = style.axis_limits(point.loss for point in panel.points)
        for point in panel.points:
            colour = palette.colours[point.searcher]
            if point.loss > top:
                style.mark_beyond(axes, point.cost, colour)
                continue
            filled = style.WHITE if point.is_hollow else colour
            shape = palette.shapes[point.searcher]
            axes.plot(point.cost, point.loss, shape, color=colour, mfc=filled, mec=colour, mew=1.6, ms=7)
            if point.noise:
                axes.plot([point.cost] * 2, [point.loss - point.noise, point.loss], color=colour, lw=1.0, alpha=0.7)
        axes.axhline(panel.points[0].loss, color=style.GREY, lw=0.9, ls="--")
        axes.set_ylim(bottom - 0.25 * (top - bottom), top)
        log_scale(axes)
        title = f"{style.short(panel.calibration, 34)}, M = {panel.remove}"
        style.name_axes(axes, title, "layer-forwards of the search alone (log scale)", "calibration loss")
        style.finish(axes)
    keys = palette.point_keys(dict.fromkeys(point.searcher for panel in panels for point in panel.points))
    keys.append(Line2D([], [], ls="", marker="o", mfc=style.WHITE, mec=style.INK, label="hollow: significantly worse"))
    style.legend(figure, keys)
    caption = (
        "Lower and further left is better. The vertical line of a searcher shows the noise: if it reaches the dashed "
        "line (the best searcher), the two are not significantly different. A hollow marker is a searcher that is "
        "significantly worse than the best one, corrected for all pairs. An arrow marks a loss above the end of the "
        "axis."
    )
    return Picture(name, f"{model}: loss against what the search costs", caption, figure)
