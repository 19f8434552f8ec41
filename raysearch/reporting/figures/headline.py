"""The figure with which a report opens: the results of each calibration and searcher, and those of the dense model.

Source: Kim et al. 2026 (arXiv 2604.24938), Figure 2 (in version 1: between methods, by calibration).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from raysearch.core import style
from raysearch.reporting.analysis.analyse import Analysis
from raysearch.reporting.analysis.comparison import Comparison
from raysearch.reporting.analysis.frame import CALIBRATION_LOSS, HELD_OUT_LOSS, Quantity, by_column
from raysearch.reporting.figures.picture import Palette, Picture, grid, log_scale, pictures

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SPREAD = 0.62  # the share of a row's height over which the searchers of a calibration are spread


@dataclass(frozen=True)
class _Point:
    """The mean of a searcher in a setting, and its standard error; None if it is not known."""

    calibration: str
    searcher: str
    value: float
    error: float | None

    @property
    def ends(self) -> tuple[float, float]:
        error = self.error or 0.0
        return self.value - error, self.value + error


@dataclass(frozen=True)
class _Panel:
    """The points of one M; for losses, whose units differ, those of one calibration.

    Args:
        remove: M.
        points: The points.
        dense: The dense model's number; None if it is not known.
        scale: A label; panels with the same label have the same axis.
    """

    remove: int
    points: Sequence[_Point]
    dense: float | None
    scale: str


def headline_pictures(analysis: Analysis, palette: Palette) -> list[Picture]:
    """Return for each model a figure of `Analysis.headline`: a panel per M, a row per calibration, points of searchers.

    A loss has a panel for each calibration, too, since their units differ. A model without a mask has no figure.

    Args:
        analysis: The study and its statistics.
        palette: The looks of its searchers.
    """
    return pictures("headline", _panels(analysis), partial(_headline, analysis.headline, palette))


def _panels(analysis: Analysis) -> Iterator[tuple[str, _Panel]]:
    quantity = analysis.headline
    comparisons = (*analysis.by_loss, *analysis.by_held_out, *analysis.by_average)
    compared = [comparison for comparison in comparisons if comparison.quantity == quantity]
    if quantity in (CALIBRATION_LOSS, HELD_OUT_LOSS):
        for comparison in compared:
            setting = comparison.setting
            points = _points(comparison)
            if points:
                yield setting.model, _Panel(setting.remove, points, _dense_loss(comparison), setting.calibration)
        return
    compared.sort(key=_model_and_size)
    for (model, remove), members in itertools.groupby(compared, _model_and_size):
        points = [point for comparison in members for point in _points(comparison)]
        dense = by_column(analysis.results.dense.get(model, {}), analysis.results).get(quantity.key)
        if points:
            yield model, _Panel(remove, points, None if dense is None else dense.value, "")


def _model_and_size(comparison: Comparison) -> tuple[str, int]:
    return comparison.setting.model, comparison.setting.remove


def _points(comparison: Comparison) -> list[_Point]:
    """Return the searchers that have a finite number; a calibration loss is shown minus the dense model's."""
    over_dense = comparison.quantity == CALIBRATION_LOSS
    points = [
        _Point(
            comparison.setting.calibration,
            rival.searcher,
            float(rival.cells["delta"].mean()) if over_dense else rival.mean,
            rival.error,
        )
        for rival in comparison.rivals
    ]
    return [point for point in points if math.isfinite(point.value)]


def _dense_loss(comparison: Comparison) -> float:
    """Return the dense model's place on the axis: 0 for a loss minus its own, else its mean loss over the draws."""
    if comparison.quantity == CALIBRATION_LOSS:
        return 0.0
    return float(comparison.best.cells.drop_duplicates("draw")["dense_loss"].mean())


def _headline(quantity: Quantity, palette: Palette, name: str, model: str, panels: Sequence[_Panel]) -> Picture:
    from matplotlib.lines import Line2D

    of_losses = quantity in (CALIBRATION_LOSS, HELD_OUT_LOSS)
    label = "loss over the dense model's" if quantity is CALIBRATION_LOSS else quantity.title
    calibrations = list(dict.fromkeys(point.calibration for panel in panels for point in panel.points))
    searchers = list(dict.fromkeys(point.searcher for panel in panels for point in panel.points))
    figure, places = grid(len(panels), 0.75 + 0.5 * (1 if of_losses else len(calibrations)), sharey=not of_losses)
    for axes, panel in zip(places, panels, strict=True):
        low, high = _ends(quantity, [similar for similar in panels if similar.scale == panel.scale])
        axes.set_xlim(low, high)
        rows = [panel.points[0].calibration] if of_losses else calibrations
        _draw(axes, panel, rows, searchers, palette, high)
        better = "right" if quantity.higher_is_better else "left"
        scale = " (log scale)" if quantity.ratio else ""
        style.name_axes(axes, f"M = {panel.remove}", f"{label}{scale}; better: {better}")
        if quantity.ratio:
            log_scale(axes)
        style.finish(axes, "x")
    keys = palette.point_keys(searchers)
    levels = {panel.dense for panel in panels if panel.dense is not None}
    if levels:
        level = f" ({quantity.text(levels.pop())})" if len(levels) == 1 and not of_losses else ""
        keys.append(Line2D([], [], color=style.GREY, lw=1.2, ls="--", label=f"dense{level}"))
    style.legend(figure, keys)
    caption = (
        "A row a calibration, a point a searcher (the mean over draws and seeds), a bar the median of a row. Dashed: "
        "the dense model. Whiskers, where known, are one standard error of a number by itself; two points are compared "
        "on the same items, which is surer: see the findings. Hollow markers at the edge lie beyond the axis. "
    )
    if of_losses:
        caption += "Losses of two calibrations have different units; the panels of one calibration share their axis."
    else:
        caption += "All panels have the same axis. Rows apart: the calibration matters."
    return Picture(name, f"{model}: what came of each calibration and searcher", caption, figure)


def _draw(
    axes: Axes, panel: _Panel, calibrations: Sequence[str], searchers: Sequence[str], palette: Palette, high: float
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


def _ends(quantity: Quantity, panels: Sequence[_Panel]) -> tuple[float, float]:
    """Return the ends of the axis of some panels: with the dense model and errors, but without outliers.

    An outlier would compress the other points. Shares of right answers have no outliers.
    """
    values = [point.value for panel in panels for point in panel.points]
    levels = [panel.dense for panel in panels if panel.dense is not None]
    if quantity.higher_is_better:
        low = min([*values, *levels])
        high = max([*values, *levels])
    elif quantity.ratio:
        low, high = np.exp(style.axis_limits(np.log([*values, *levels])))
    else:
        low, high = style.axis_limits([*values, *levels])
    inside = [end for panel in panels for point in panel.points if point.value <= high for end in point.ends]
    pad = 0.03 * (high - low)
    smallest = min(low, *(end - pad for end in inside if end > 0 or not quantity.ratio), math.inf)
    return float(smallest), float(max(high, *(end + pad for end in inside), -math.inf))
