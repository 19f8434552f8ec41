"""The figure with which a report opens: the results of each calibration and searcher, and those of the dense model.

Source: Kim et al. 2026 (arXiv 2604.24938), Figure 2 (in version 1: between methods, by calibration).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from raysearch.figures import style
from raysearch.figures.palette import Palette
from raysearch.figures.panels import grid, log_scale
from raysearch.figures.picture import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SPREAD = 0.62  # the share of a row's height over which the searchers of a calibration are spread


@dataclass(frozen=True)
class HeadlineNumber:
    """The number that the figure shows.

    Args:
        label: Its name.
        higher_is_better: Whether a higher number is better.
        is_ratio: Whether it is compared by ratios, so that its axis is logarithmic.
        is_loss: Whether it is a loss, whose unit depends on the calibration.
        text: Formats the number.
    """

    label: str
    higher_is_better: bool
    is_ratio: bool
    is_loss: bool
    text: Callable[[float], str]


@dataclass(frozen=True)
class HeadlinePoint:
    """The mean of a searcher in a setting, and its standard error; None if it is not known."""

    calibration: str
    searcher: str
    value: float
    error: float | None

    @property
    def ends(self) -> tuple[float, float]:
        """The value minus and plus its error."""
        error = self.error or 0.0
        return self.value - error, self.value + error


@dataclass(frozen=True)
class HeadlinePanel:
    """The points of one M; for losses, whose units differ, those of one calibration.

    Args:
        remove: M.
        points: The points.
        dense: The dense model's number; None if it is not known.
        scale: A label; panels with the same label have the same axis.
    """

    remove: int
    points: Sequence[HeadlinePoint]
    dense: float | None
    scale: str


def headline_picture(
    number: HeadlineNumber, palette: Palette, name: str, model: str, panels: Sequence[HeadlinePanel]
) -> Picture:
    """Draw a panel per M, with a row per calibration and a point per searcher.

    Args:
        number: The number.
        palette: The looks of the searchers.
        name: The name of the picture.
        model: The model.
        panels: The panels.

    Returns:
        The picture, with its title and caption.
    """
    from matplotlib.lines import Line2D

    calibrations = list(dict.fromkeys(point.calibration for panel in panels for point in panel.points))
    searchers = list(dict.fromkeys(point.searcher for panel in panels for point in panel.points))
    n_rows = 1 if number.is_loss else len(calibrations)
    figure, all_axes = grid(len(panels), 0.75 + 0.5 * n_rows, sharey=not number.is_loss)
    for axes, panel in zip(all_axes, panels, strict=True):
        low, high = _ends(number, [similar for similar in panels if similar.scale == panel.scale])
        axes.set_xlim(low, high)
        rows = [panel.points[0].calibration] if number.is_loss else calibrations
        _draw(axes, panel, rows, searchers, palette, high)
        better = "right" if number.higher_is_better else "left"
        scale = " (log scale)" if number.is_ratio else ""
        style.name_axes(axes, f"M = {panel.remove}", f"{number.label}{scale}; better: {better}")
        if number.is_ratio:
            log_scale(axes)
        style.finish(axes, "x")
    keys = palette.point_keys(searchers)
    levels = {panel.dense for panel in panels if panel.dense is not None}
    if levels:
        level = f" ({number.text(levels.pop())})" if len(levels) == 1 and not number.is_loss else ""
        keys.append(Line2D([], [], color=style.GREY, lw=1.2, ls="--", label=f"dense{level}"))
    style.legend(figure, keys)
    caption = (
        "Each row is a calibration, each point is a searcher (the mean over draws and seeds), and the bar is the "
        "median of the row. The dashed line is the dense model. Whiskers, where they are known, are one standard "
        "error of a single number. Two searchers are compared on the same items, so their difference has a smaller "
        "error: see the findings. A hollow marker at the edge lies beyond the axis. "
    )
    if number.is_loss:
        caption += (
            "The losses of two calibrations have different units. The panels of the same calibration have the same "
            "axis."
        )
    else:
        caption += "All panels have the same axis. If the rows lie far from each other, the calibration matters."
    return Picture(name, f"{model}: the result of each calibration and searcher", caption, figure)


def _draw(
    axes: Axes,
    panel: HeadlinePanel,
    calibrations: Sequence[str],
    searchers: Sequence[str],
    palette: Palette,
    high: float,
) -> None:
    for point in panel.points:
        step = searchers.index(point.searcher) / max(1, len(searchers) - 1) - 0.5
        row = calibrations.index(point.calibration) + _SPREAD * step
        look = {**palette.point(point.searcher), "ms": 6, "mew": 1.2}
        if point.value > high:
            axes.plot(1.0, row, transform=axes.get_yaxis_transform(), clip_on=False, fillstyle="none", **look)
        else:
            axes.errorbar(point.value, row, xerr=point.error, elinewidth=0.9, ls="", **look)
    for row, calibration in enumerate(calibrations):
        values = [point.value for point in panel.points if point.calibration == calibration]
        if values:
            middle = float(np.median(values))
            axes.plot([middle, middle], [row - 0.42, row + 0.42], color=style.INK, lw=1.2, zorder=0)
        if row:
            axes.axhline(row - 0.5, color=style.LINE, lw=0.8)
    if panel.dense is not None:
        axes.axvline(panel.dense, color=style.GREY, lw=1.2, ls="--", zorder=0)
    axes.set_yticks(range(len(calibrations)), [style.short(calibration, 30) for calibration in calibrations])
    axes.set_ylim(len(calibrations) - 0.5, -0.5)


def _ends(number: HeadlineNumber, panels: Sequence[HeadlinePanel]) -> tuple[float, float]:
    """Return the ends of the axis of some panels: with the dense model and errors, but without outliers.

    An outlier would compress the other points. Shares of right answers have no outliers.
    """
    values = [point.value for panel in panels for point in panel.points]
    levels = [panel.dense for panel in panels if panel.dense is not None]
    if number.higher_is_better:
        low = min([*values, *levels])
        high = max([*values, *levels])
    elif number.is_ratio:
        low, high = np.exp(style.axis_limits(np.log([*values, *levels])))
    else:
        low, high = style.axis_limits([*values, *levels])
    inside = [end for panel in panels for point in panel.points if point.value <= high for end in point.ends]
    pad = 0.03 * (high - low)
    smallest = min(low, *(end - pad for end in inside if end > 0 or not number.is_ratio), math.inf)
    return float(smallest), float(max(high, *(end + pad for end in inside), -math.inf))
