"""Figures of quality: perplexity against accuracy, loss against cost, rankings, variance.

Source: Kim et al. 2026 (arXiv 2604.24938), Figure 3, Table 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pandas as pd

from raysearch.core import style
from raysearch.reporting.analysis.analyse import Analysis
from raysearch.reporting.analysis.comparison import Comparison
from raysearch.reporting.analysis.correlation import Correlation
from raysearch.reporting.analysis.frame import Quantity, by_column, searcher_means
from raysearch.reporting.analysis.variance import Split
from raysearch.reporting.figures.picture import Palette, Picture, grid, log_scale, name_rows, pictures, stack
from raysearch.studies.result import StudyResult
from raysearch.text import numbers

_PARTS = {
    "calibration": style.BLUE,
    "draw": style.STEEL,
    "searcher": style.AMBER,
    "interaction": style.PINK,
    "residual": style.LIGHT_GREY,
}
_PART_NAMES = {
    "draw": "draw of the calibration",
    "interaction": "both together (interaction)",
    "residual": "the rest: seeds or noise",
}
_Points = tuple[int, pd.DataFrame]  # M, and a row per searcher and calibration


def tradeoff_pictures(analysis: Analysis, palette: Palette) -> list[Picture]:
    """Return for each model the average perplexity against the average accuracy, a panel per M.

    None without both averages.

    Args:
        analysis: The study and its statistics.
        palette: The looks of its searchers.
    """
    quantities = [average for average in analysis.averages if average.group in ("perplexity", "accuracy")]
    if len(quantities) < 2:
        return []
    perplexity, accuracy = quantities
    columns = {perplexity.key: "perplexity", accuracy.key: "accuracy", accuracy.error: "error"}
    means = searcher_means(analysis.frame, perplexity)[[*columns]].rename(columns=columns)
    points = means.dropna(subset=["perplexity", "accuracy"]).reset_index()
    by_size = points.groupby(["model", "remove"], observed=True)
    panels = ((model, (remove, panel)) for (model, remove), panel in by_size)
    return pictures("tradeoff", panels, partial(_tradeoff, analysis.results, quantities, palette))


def _tradeoff(
    results: StudyResult, quantities: Sequence[Quantity], palette: Palette, name: str, model: str, panels: list[_Points]
) -> Picture:
    estimates = by_column(results.dense.get(model, {}), results)
    dense = [estimates[quantity.key].value for quantity in quantities if quantity.key in estimates]
    perplexity, accuracy = quantities
    figure, places = grid(len(panels), 3.6, sharey=True, sharex=True)
    for axes, (remove, points) in zip(places, panels, strict=True):
        for point in points.itertuples():
            filling = palette.fillings[point.calibration]
            look = {**palette.point(point.searcher), "fillstyle": filling, "ms": 7, "mew": 1.2}
            error = point.error if point.error >= 0 else None
            axes.errorbar(point.perplexity, point.accuracy, yerr=error, elinewidth=0.9, ls="", **look)
        if len(dense) == 2:
            axes.plot(*dense, "*", color=style.INK, ms=13)
        style.name_axes(axes, f"M = {remove}", f"{perplexity.title} (log scale)", f"{accuracy.title} ({accuracy.unit})")
        log_scale(axes)
        style.finish(axes)
    all_points = pd.concat([points for _, points in panels])
    searchers = all_points["searcher"].unique()
    calibrations = all_points["calibration"].unique()
    style.legend(figure, palette.point_keys(searchers, calibrations, dense=len(dense) == 2))
    caption = (
        "Up and to the left is better. Colour and shape: searcher; filling: calibration; bars: one standard error of "
        "accuracy."
    )
    return Picture(name, f"{model}: perplexity against accuracy", caption, figure)


def cost_pictures(comparisons: Sequence[Comparison], palette: Palette) -> list[Picture]:
    """Return for each model the loss against the cost of a search, a panel per setting; hollow if significantly worse.

    Args:
        comparisons: The comparisons by calibration loss.
        palette: The looks of the searchers.
    """
    priced = [comparison for comparison in comparisons if any(rival.cost > 0 for rival in comparison.rivals)]
    return pictures("cost", ((comparison.setting.model, comparison) for comparison in priced), partial(_cost, palette))


def _cost(palette: Palette, name: str, model: str, comparisons: list[Comparison]) -> Picture:
    from matplotlib.lines import Line2D

    figure, places = grid(len(comparisons), 2.8)
    ordered = sorted(comparisons, key=lambda comparison: comparison.setting.remove)
    for axes, comparison in zip(places, ordered, strict=True):
        bottom, top = style.axis_limits(rival.mean for rival in comparison.rivals)
        for rival in comparison.rivals:
            colour = palette.colours[rival.searcher]
            if rival.mean > top:
                style.mark_beyond(axes, rival.cost, colour)
                continue
            filled = colour if rival.tied else style.WHITE
            shape = palette.shapes[rival.searcher]
            axes.plot(rival.cost, rival.mean, shape, color=colour, mfc=filled, mec=colour, mew=1.6, ms=7)
            if rival.noise:
                axes.plot([rival.cost] * 2, [rival.mean - rival.noise, rival.mean], color=colour, lw=1.0, alpha=0.7)
        axes.axhline(comparison.best.mean, color=style.GREY, lw=0.9, ls="--")
        axes.set_ylim(bottom - 0.25 * (top - bottom), top)
        log_scale(axes)
        title = f"{style.short(comparison.setting.calibration, 34)}, M = {comparison.setting.remove}"
        style.name_axes(axes, title, "layer-forwards of the search alone (log scale)", "calibration loss")
        style.finish(axes)
    searchers = dict.fromkeys(rival.searcher for comparison in comparisons for rival in comparison.rivals)
    keys = palette.point_keys(searchers)
    keys.append(Line2D([], [], ls="", marker="o", mfc=style.WHITE, mec=style.INK, label="hollow: significantly worse"))
    style.legend(figure, keys)
    caption = (
        "Down and to the left is better. The vertical line of a searcher shows the noise: if it reaches the dashed "
        "line (the best), the two are not significantly different. Hollow: significantly worse than the best, "
        "corrected for all pairs. An arrow: the loss lies above what the axis shows."
    )
    return Picture(name, f"{model}: loss against what the search costs", caption, figure)


def correlation_pictures(correlations: Sequence[Correlation]) -> list[Picture]:
    """Return the figure of rank correlations with their intervals: a panel per pair of quantities, a line per setting.

    None without a correlation.
    """
    defined = [correlation for correlation in correlations if correlation.rho is not None]
    if not defined:
        return []
    pairs = list(dict.fromkeys((correlation.first.title, correlation.second.title) for correlation in defined))
    settings = list(dict.fromkeys(correlation.setting for correlation in defined))
    has_several_models = len({setting.model for setting in settings}) > 1
    figure, grid_axes = grid(len(pairs), 0.3 * len(settings), 10.4, columns=len(pairs), foot=1.6, sharey=True)
    panels: dict[tuple[str, str], Any] = dict(zip(pairs, grid_axes, strict=True))
    for correlation in defined:
        axes = panels[correlation.first.title, correlation.second.title]
        row = settings.index(correlation.setting)
        if correlation.low is not None and correlation.high is not None:
            interval = [correlation.low, correlation.high]
            axes.plot(interval, [row, row], color=style.STEEL, lw=2.2, solid_capstyle="round")
        axes.plot(correlation.rho, row, "o", color=style.INK, ms=6)
    for titles, axes in panels.items():
        axes.axvline(0, color=style.GREY, lw=0.9)
        axes.set_xlim(-1.08, 1.08)
        axes.set_xticks([-1, -0.5, 0, 0.5, 1])
        style.name_axes(axes, "\nand ".join(style.short(title, 40) for title in titles), "Spearman's ρ")
        style.finish(axes, "x")
    labels = []
    for setting in settings:
        model = f"{style.short(setting.model, 18)}, " if has_several_models else ""
        labels.append(f"{model}{style.short(setting.calibration, 26)}, M = {setting.remove}")
    name_rows(grid_axes[0], labels)
    caption = (
        "Right of the line, the searcher that is better by the one is better by the other too; left of it, worse. Bars "
        "are 95 % bootstrap intervals."
    )
    return [Picture("correlations", "How rankings go together", caption, figure)]


def variance_pictures(splits: Sequence[Split]) -> list[Picture]:
    """Return the figure of the shares of variance as bars; none without a share."""
    from matplotlib.patches import Patch

    if not splits:
        return []
    figure, (axes,) = grid(1, 0.36 * len(splits), 8.6, foot=1.3)
    has_several_models = len({split.panel.model for split in splits}) > 1
    for row, split in enumerate(splits):
        shares = {part: split.shares.get(part, 0.0) for part in _PARTS}
        for (part, share), start in zip(shares.items(), stack(axes, row, shares, _PARTS), strict=True):
            if share > 0.06:
                colour = style.WHITE if part == "calibration" else style.INK
                middle = start + share / 2
                axes.text(
                    middle, row, numbers.percent(share), color=colour, fontsize=style.TEXT, ha="center", va="center"
                )
    labels = []
    for split in splits:
        model = f"{style.short(split.panel.model, 20)}, " if has_several_models else ""
        labels.append(f"{model}{style.short(split.title, 40)}, M = {split.panel.remove}")
    name_rows(axes, labels)
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    style.name_axes(axes, "", "share of the variance (ω²)")
    style.finish(axes, "x")
    used = [part for part in _PARTS if any(part in split.shares for split in splits)]
    style.legend(figure, [Patch(color=_PARTS[part], label=_PART_NAMES.get(part, part)) for part in used])
    caption = (
        "What the differences between checkpoints of one model and M go back to. With one seed the interaction cannot "
        "be separated from noise and is in the rest."
    )
    return [Picture("variance", "What results vary with", caption, figure)]
