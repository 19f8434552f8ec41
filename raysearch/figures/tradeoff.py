"""The figure of perplexity against accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raysearch.figures import style
from raysearch.figures.palette import Palette
from raysearch.figures.panels import grid, log_scale
from raysearch.figures.picture import Picture


@dataclass(frozen=True)
class TradeoffLabels:
    """The names of both axes, which are those of the averages."""

    perplexity: str
    accuracy: str


@dataclass(frozen=True)
class TradeoffPoint:
    """The means of a searcher on a calibration, and the standard error of accuracy; None if it is not known."""

    searcher: str
    calibration: str
    perplexity: float
    accuracy: float
    error: float | None


@dataclass(frozen=True)
class TradeoffPanel:
    """The points of one M.

    Args:
        remove: M.
        points: The points.
        dense: The dense model's perplexity and accuracy; None if they are not known.
    """

    remove: int
    points: Sequence[TradeoffPoint]
    dense: tuple[float, float] | None


def tradeoff_picture(
    labels: TradeoffLabels, palette: Palette, name: str, model: str, panels: Sequence[TradeoffPanel]
) -> Picture:
    """Draw perplexity against accuracy: a panel per M, a point per searcher and calibration.

    Args:
        labels: The names of the axes.
        palette: The looks of the searchers and calibrations.
        name: The name of the picture.
        model: The model.
        panels: The panels.

    Returns:
        The picture, with its title and caption.
    """
    figure, all_axes = grid(len(panels), 3.6, sharey=True, sharex=True)
    for axes, panel in zip(all_axes, panels, strict=True):
        for point in panel.points:
            filling = palette.fillings[point.calibration]
            look = {**palette.point(point.searcher), "fillstyle": filling, "ms": 7, "mew": 1.2}
            axes.errorbar(point.perplexity, point.accuracy, yerr=point.error, elinewidth=0.9, ls="", **look)
        if panel.dense is not None:
            axes.plot(*panel.dense, "*", color=style.INK, ms=13)
        style.name_axes(axes, f"M = {panel.remove}", f"{labels.perplexity} (log scale)", labels.accuracy)
        log_scale(axes)
        style.finish(axes)
    points = [point for panel in panels for point in panel.points]
    searchers = list(dict.fromkeys(point.searcher for point in points))
    calibrations = list(dict.fromkeys(point.calibration for point in points))
    style.legend(figure, palette.point_keys(searchers, calibrations, dense=panels[0].dense is not None))
    caption = (
        "Higher and further left is better. The colour and the shape show the searcher, and the filling shows the "
        "calibration. A bar is one standard error of the accuracy."
    )
    return Picture(name, f"{model}: perplexity against accuracy", caption, figure)
