"""Figures of quality: perplexity against accuracy, loss against cost, correlations of rankings, variance.

Source: Kim et al. 2026 (arXiv 2604.24938), Figures 2 and 3, Table 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pandas as pd

from raysearch.core import style
from raysearch.reporting.figures.palette import Palette
from raysearch.reporting.figures.picture import Picture, grid, pictures
from raysearch.reporting.stats.comparison import Comparison
from raysearch.reporting.stats.correlation import Correlation
from raysearch.reporting.stats.frame import Quantity, averages, by_column, has, mean_of, panels
from raysearch.reporting.stats.variance import Split
from raysearch.reporting.tables import numbers
from raysearch.study.result import StudyResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
_Points = tuple[int, pd.DataFrame]  # M, and a row a searcher of a calibration


def tradeoff_pictures(results: StudyResult, frame: pd.DataFrame, palette: Palette) -> list[Picture]:
    """For each model the average perplexity against the average accuracy, a panel an M; none unless both are there."""
    both = [one for one in averages(results) if one.group in ("perplexity", "accuracy") and has(frame, one)]
    if len(both) < 2:
        return []
    points = ((panel.model, (panel.remove, _points(cells, *both))) for panel, cells in panels(frame))
    found = (one for one in points if len(one[1][1]))
    return pictures("tradeoff", found, partial(_tradeoff, results, both, palette))


def _points(cells: pd.DataFrame, perplexity: Quantity, accuracy: Quantity) -> pd.DataFrame:
    """Both averages of each searcher of each calibration, the means over draws and seeds."""
    columns = {perplexity.key: "perplexity", accuracy.key: "accuracy", accuracy.error: "error"}
    how = {perplexity.key: partial(mean_of, perplexity), accuracy.key: "mean", accuracy.error: "mean"}
    means = cells.groupby(["calibration", "searcher"], observed=True).agg(how).rename(columns=columns)
    return means.dropna(subset=["perplexity", "accuracy"]).reset_index()


def _tradeoff(
    results: StudyResult, both: Sequence[Quantity], palette: Palette, name: str, model: str, found: list[_Points]
) -> Picture:
    of_dense = by_column(results.dense.get(model, {}), results)
    dense = [of_dense[one.key].value for one in both if one.key in of_dense]
    figure, places = grid(len(found), 3.6, sharey=True, sharex=True)
    for axes, (remove, points) in zip(places, found, strict=True):
        sizes = style.ringed(list(zip(points["perplexity"], points["accuracy"], strict=True)))
        for size, one in zip(sizes, points.itertuples(), strict=True):
            axes.errorbar(
                one.perplexity,
                one.accuracy,
                yerr=one.error if one.error >= 0 else None,
                fillstyle=palette.fillings[one.calibration],
                ms=size,
                mew=1.2,
                elinewidth=0.9,
                ls="",
                **palette.point(one.searcher),
            )
        if len(dense) == 2:
            axes.plot(*dense, "*", color=style.INK, ms=13)
        perplexity, accuracy = both
        style.name_axes(axes, f"M = {remove}", f"{perplexity.title} (log scale)", f"{accuracy.title} ({accuracy.unit})")
        log_scale(axes)
        style.finish(axes)
    every = pd.concat([points for _, points in found])
    names = every["searcher"].unique(), every["calibration"].unique()
    style.legend(figure, palette.point_keys(*names, dense=len(dense) == 2))
    caption = (
        "Up and to the left is better. Colour and shape: searcher; filling: calibration; bars: one standard error of "
        "accuracy."
    )
    alt = "Scatter: " + "; ".join(
        f"M = {remove}, {one.calibration}, {one.searcher}: perplexity {numbers.three(one.perplexity)}, "
        f"accuracy {numbers.three(one.accuracy)}"
        for remove, points in found
        for one in points.itertuples()
    )
    return Picture(name, f"{model}: perplexity against accuracy", caption, alt, figure)


def log_scale(axes: Axes) -> None:
    """Set a logarithmic scale whose ticks are 1, 2 and 5 of each power of ten, or more where it is short."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    low, high = axes.get_xlim()
    parts = (1.0, 2.0, 3.0, 5.0, 7.0) if high / low < 8 else (1.0, 2.0, 5.0) if high / low < 200 else (1.0,)
    axes.xaxis.set_major_locator(LogLocator(10, subs=parts, numticks=7))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda number, _: numbers.amount(number)))
    axes.xaxis.set_minor_formatter(NullFormatter())


def cost_pictures(comparisons: Sequence[Comparison], palette: Palette) -> list[Picture]:
    """For each model the loss against what a search costs, a panel a setting; hollow is what is told from the best."""
    priced = [one for one in comparisons if any(rival.cost > 0 for rival in one.rivals)]
    return pictures("cost", ((one.setting.model, one) for one in priced), partial(_cost, palette))


def _cost(palette: Palette, name: str, model: str, comparisons: list[Comparison]) -> Picture:
    from matplotlib.lines import Line2D

    figure, places = grid(len(comparisons), 2.8)
    ordered = sorted(comparisons, key=lambda one: one.setting.remove)
    for axes, comparison in zip(places, ordered, strict=True):
        sizes = style.ringed([(rival.cost, rival.mean) for rival in comparison.rivals])
        bottom, top = style.within(rival.mean for rival in comparison.rivals)
        for size, rival in zip(sizes, comparison.rivals, strict=True):
            colour = palette.colours[rival.searcher]
            filled = colour if rival.tied else style.WHITE
            if rival.mean > top:
                style.mark_beyond(axes, rival.cost, colour)
                continue
            shape = palette.shapes[rival.searcher]
            axes.plot(rival.cost, rival.mean, shape, color=colour, mfc=filled, mec=colour, mew=1.6, ms=size)
            if rival.noise:
                axes.plot([rival.cost] * 2, [rival.mean - rival.noise, rival.mean], color=colour, lw=1.0, alpha=0.7)
        axes.axhline(comparison.best.mean, color=style.GREY, lw=0.9, ls="--")
        axes.set_ylim(bottom - 0.25 * (top - bottom), top)
        log_scale(axes)
        title = f"{style.short(comparison.setting.calibration, 34)}, M = {comparison.setting.remove}"
        style.name_axes(axes, title, "layer-forwards of the search alone (log scale)", "calibration loss")
        style.finish(axes)
    keys = palette.point_keys(dict.fromkeys(rival.searcher for one in comparisons for rival in one.rivals))
    keys.append(Line2D([], [], ls="", marker="o", mfc=style.WHITE, mec=style.INK, label="hollow: told from the best"))
    style.legend(figure, keys)
    caption = (
        "Down and to the left is better. A line hangs from each searcher as far as noise reaches between it and the "
        "best, the dashed line. Hollow: told from the best, corrected for all pairs. An arrow: the loss lies far above "
        "the others, off the scale."
    )
    alt = "Scatter: " + "; ".join(
        f"{one.setting.calibration}, M = {one.setting.remove}, {rival.searcher}: loss "
        f"{numbers.loss(rival.mean)} at {numbers.amount(rival.cost)} layer-forwards"
        for one in ordered
        for rival in one.rivals
    )
    return Picture(name, f"{model}: loss against what the search costs", caption, alt, figure)


def correlation_pictures(correlations: Sequence[Correlation]) -> list[Picture]:
    """Rank correlations with their intervals, a panel a pair of quantities, a line a setting; none without any."""
    known = [one for one in correlations if one.rho is not None]
    if not known:
        return []
    pairs = list(dict.fromkeys((one.first.title, one.second.title) for one in known))
    places = list(dict.fromkeys(one.setting for one in known))
    several = len({place.model for place in places}) > 1
    calibrations = list(dict.fromkeys(place.calibration for place in places))
    figure, every = grid(len(pairs), 0.3 * len(places), 10.4, columns=len(pairs), foot=1.2, sharey=True)
    panels: dict[tuple[str, str], Any] = dict(zip(pairs, every, strict=True))
    for one in known:
        axes, row = panels[one.first.title, one.second.title], places.index(one.setting)
        if one.low is not None and one.high is not None:
            axes.plot([one.low, one.high], [row, row], color=style.STEEL, lw=2.2, solid_capstyle="round")
        marker = style.MARKERS[calibrations.index(one.setting.calibration) % len(style.MARKERS)]
        axes.plot(one.rho, row, marker, color=style.INK, ms=6)
    for titles, axes in panels.items():
        axes.axvline(0, color=style.GREY, lw=0.9)
        axes.set_xlim(-1.08, 1.08)
        axes.set_xticks([-1, -0.5, 0, 0.5, 1])
        style.name_axes(axes, "\nand ".join(titles), "Spearman's ρ")
        style.finish(axes, "x")
    labels = [
        (f"{style.short(place.model, 18)}, " if several else "")
        + f"{style.short(place.calibration, 26)}, M = {place.remove}"
        for place in places
    ]
    _name_rows(every[0], labels)
    caption = (
        "Right of the line, the searcher that is better by the one is better by the other too; left of it, worse. Bars "
        "are 95 % bootstrap intervals."
    )
    alt = "Rank correlations: " + "; ".join(
        f"{one.setting.model}, {one.setting.calibration}, M = {one.setting.remove}, {one.first.title} and "
        f"{one.second.title}: {numbers.rho(one.rho)}"
        for one in known
    )
    return [Picture("correlations", "How rankings go together", caption, alt, figure)]


def variance_pictures(splits: Sequence[Split]) -> list[Picture]:
    """Shares of variance as bars; none without any."""
    from matplotlib.patches import Patch

    if not splits:
        return []
    figure, (axes,) = grid(1, 0.36 * len(splits), 8.6, foot=1.3)
    several = len({one.panel.model for one in splits}) > 1
    for row, one in enumerate(splits):
        left = 0.0
        for part, colour in _PARTS.items():
            share = getattr(one.shares, part) or 0.0
            axes.barh(row, share, left=left, color=colour, height=0.7)
            if share > 0.06:
                on = style.WHITE if part == "calibration" else style.INK
                axes.text(
                    left + share / 2,
                    row,
                    numbers.percent(share),
                    ha="center",
                    va="center",
                    fontsize=style.TEXT,
                    color=on,
                )
            left += share
    labels = [
        (f"{style.short(one.panel.model, 20)}, " if several else "") + f"{one.title}, M = {one.panel.remove}"
        for one in splits
    ]
    _name_rows(axes, labels)
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    style.name_axes(axes, "", "share of the variance (ω²)")
    style.finish(axes, "x")
    used = [part for part in _PARTS if any(getattr(one.shares, part) is not None for one in splits)]
    style.legend(figure, [Patch(color=_PARTS[part], label=_PART_NAMES.get(part, part)) for part in used])
    caption = (
        "What the differences between checkpoints of one model and M go back to. With one seed the interaction cannot "
        "be told from noise and is in the rest."
    )
    alt = "Shares of variance: " + "; ".join(
        f"{label}: calibration {numbers.percent(one.shares.calibration)}, "
        f"searcher {numbers.percent(one.shares.searcher)}"
        for label, one in zip(labels, splits, strict=True)
    )
    return [Picture("variance", "What results vary with", caption, alt, figure)]


def _name_rows(axes: Axes, labels: Sequence[str]) -> None:
    """Write the labels of rows from the top down."""
    axes.set_yticks(range(len(labels)), [style.plain(label) for label in labels])
    axes.set_ylim(len(labels) - 0.4, -0.6)
