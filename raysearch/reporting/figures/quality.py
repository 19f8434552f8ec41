"""Figures of quality: perplexity against accuracy, loss against cost, correlations of rankings, variance.

Source: Kim et al. 2026 (arXiv 2604.24938), Figures 2 and 3, Table 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from raysearch.reporting.figures.style import (
    GREY,
    INK,
    MARKERS,
    TEXT,
    TITLE,
    Palette,
    Picture,
    finish,
    legend,
    ringed,
    short,
)
from raysearch.reporting.stats.comparison import Comparison, Summary, summarise
from raysearch.reporting.stats.correlation import Correlation
from raysearch.reporting.stats.frame import averages, averages_of, has, settings
from raysearch.reporting.stats.variance import Split
from raysearch.study.result import StudyResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PARTS = (("calibration", "#0072B2"), ("searcher", "#E69F00"), ("interaction", "#CC79A7"), ("residual", "#c9d1d8"))


def tradeoff_pictures(results: StudyResult, frame: pd.DataFrame, palette: Palette) -> list[Picture]:
    """For each model the average perplexity against the average accuracy, a panel an M; none unless both are there."""
    both = {one.group: one for one in averages(results) if has(frame, one)}
    if len(both) < 2:
        return []
    found: dict[str, dict[int, list[tuple[str, Summary, Summary]]]] = {}
    for setting, cells in settings(frame):
        accuracies = {one.searcher: one for one in summarise(cells, both["accuracy"])}
        for perplexity in summarise(cells, both["perplexity"]):
            if perplexity.searcher in accuracies:
                panel = found.setdefault(setting.model, {}).setdefault(setting.remove, [])
                panel.append((setting.calibration, perplexity, accuracies[perplexity.searcher]))
    return [
        _tradeoff(
            f"tradeoff_{number}", model, panels, averages_of(results.dense.get(model, {}), results), palette, both
        )
        for number, (model, panels) in enumerate(found.items(), 1)
    ]


def _tradeoff(
    name: str,
    model: str,
    panels: dict[int, list[tuple[str, Summary, Summary]]],
    dense: Any,
    palette: Palette,
    both: Any,
) -> Picture:
    from matplotlib.figure import Figure

    columns = min(len(panels), 2)
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(5.2 * columns if columns > 1 else 7.0, 3.6 * lines + 0.7), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False, sharey=True, sharex=True)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, (remove, points) in zip(grid.flat, sorted(panels.items()), strict=False):
        sizes = ringed([(perplexity.mean, accuracy.mean) for _, perplexity, accuracy in points])
        for size, (calibration, perplexity, accuracy) in zip(sizes, points, strict=True):
            axes.errorbar(
                perplexity.mean,
                accuracy.mean,
                yerr=accuracy.error,
                color=palette.colours[accuracy.searcher],
                marker=palette.markers[calibration],
                ms=size,
                mec="white",
                mew=0.7,
                elinewidth=0.9,
                ls="",
            )
        if len(dense) == 2:
            axes.plot(dense["perplexity_average"].value, dense["accuracy_average"].value, "*", color=INK, ms=13)
        axes.set_xscale("log")
        axes.set_title(f"M = {remove}", fontsize=TITLE, color=INK, loc="left")
        axes.set_xlabel(f"{both['perplexity'].title} (log scale)", fontsize=TEXT, color=INK)
        axes.set_ylabel(f"{both['accuracy'].title} ({both['accuracy'].unit})", fontsize=TEXT, color=INK)
        _plain_log(axes)
        finish(axes)
    calibrations = dict.fromkeys(calibration for points in panels.values() for calibration, *_ in points)
    searchers = dict.fromkeys(one.searcher for points in panels.values() for _, one, _ in points)
    legend(figure, _keys(calibrations, searchers, palette, dense=len(dense) == 2))
    caption = (
        "Up and to the left is better. Colour: searcher; shape: calibration; bars: one standard error of accuracy."
    )
    alt = "Scatter: " + "; ".join(
        f"M = {remove}, {calibration}, {p.searcher}: perplexity {p.mean:.2f}, accuracy {a.mean:.2f}"
        for remove, points in sorted(panels.items())
        for calibration, p, a in points
    )
    return Picture(name, f"{model}: perplexity against accuracy", caption, alt, figure)


def _plain_log(axes: Axes) -> None:
    """Ticks as people write them, 1, 2 and 5 of each power of ten, unless they would be too many."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axes.get_xlim()
    narrow = high / low < 200
    axes.xaxis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0) if narrow else (1.0,)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:,.10g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _keys(calibrations: Any, searchers: Any, palette: Palette, dense: bool = False) -> list[Any]:
    from matplotlib.lines import Line2D

    keys = [
        Line2D([], [], ls="", marker="o", color=palette.colours[name], label=short(name, 40), ms=7)
        for name in searchers
    ]
    if len(calibrations) > 1:
        keys += [
            Line2D([], [], ls="", marker=palette.markers[name], color="none", mec=INK, label=short(name, 40), ms=7)
            for name in calibrations
        ]
    if dense:
        keys.append(Line2D([], [], ls="", marker="*", color=INK, label="dense", ms=11))
    return keys


def cost_pictures(comparisons: Sequence[Comparison], palette: Palette) -> list[Picture]:
    """For each model the loss against what a search costs, a panel a setting; the band is what ties with the best."""
    by_model: dict[str, list[Comparison]] = {}
    for one in comparisons:
        if any(rival.summary.cost > 0 for rival in one.rivals):
            by_model.setdefault(one.setting.model, []).append(one)
    return [_cost(f"cost_{number}", model, parts, palette) for number, (model, parts) in enumerate(by_model.items(), 1)]


def _cost(name: str, model: str, panels: list[Comparison], palette: Palette) -> Picture:
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    columns = min(len(panels), 2)
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(5.2 * columns if columns > 1 else 7.0, 2.8 * lines + 0.7), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    ordered = sorted(panels, key=lambda one: one.setting.remove)
    for axes, comparison in zip(grid.flat, ordered, strict=False):
        sizes = ringed([(rival.summary.cost, rival.summary.mean) for rival in comparison.rivals])
        for size, rival in zip(sizes, comparison.rivals, strict=True):
            one, colour = rival.summary, palette.colours[rival.summary.searcher]
            filled = colour if rival.tied else "white"
            axes.plot(one.cost, one.mean, "o", color=colour, mfc=filled, mec=colour, mew=1.6, ms=size)
            if rival.noise:
                axes.plot([one.cost] * 2, [one.mean - rival.noise, one.mean], color=colour, lw=1.0, alpha=0.7)
        axes.axhline(comparison.best.mean, color=GREY, lw=0.9, ls="--")
        losses = [rival.summary.mean for rival in comparison.rivals]
        reach = max(losses) - min(losses) or 0.02 * abs(losses[0])
        axes.set_ylim(min(losses) - 0.4 * reach, max(losses) + 0.12 * reach)
        axes.set_xscale("log")
        _plain_log(axes)
        axes.set_xlabel("layer-forwards of the search alone (log scale)", fontsize=TEXT, color=INK)
        axes.set_ylabel("calibration loss", fontsize=TEXT, color=INK)
        title = f"{short(comparison.setting.calibration, 34)}, M = {comparison.setting.remove}"
        axes.set_title(title, fontsize=TITLE, color=INK, loc="left")
        finish(axes)
    searchers = dict.fromkeys(rival.summary.searcher for one in panels for rival in one.rivals)
    keys = _keys({}, searchers, palette)
    keys.append(Line2D([], [], ls="", marker="o", mfc="white", mec=INK, label="hollow: not within noise of the best"))
    legend(figure, keys)
    caption = (
        "Down and to the left is better. A line hangs from each searcher as far as noise reaches: where it touches the "
        "dashed line, the best, the two tie."
    )
    alt = "Scatter: " + "; ".join(
        f"{one.setting.calibration}, M = {one.setting.remove}, {rival.summary.searcher}: loss "
        f"{rival.summary.mean:.4f} at {rival.summary.cost:,.0f} layer-forwards"
        for one in ordered
        for rival in one.rivals
    )
    return Picture(name, f"{model}: loss against what the search costs", caption, alt, figure)


def correlation_picture(correlations: Sequence[Correlation]) -> Picture | None:
    """Rank correlations with their intervals, a panel a pair of quantities, a line a setting."""
    from matplotlib.figure import Figure

    known = [one for one in correlations if one.rho is not None]
    if not known:
        return None
    pairs: dict[tuple[str, str], list[Correlation]] = {}
    for one in known:
        pairs.setdefault((one.first.title, one.second.title), []).append(one)
    places = list(dict.fromkeys(one.setting for one in known))
    models = len({place.model for place in places}) > 1
    calibrations = list(dict.fromkeys(place.calibration for place in places))
    figure = Figure(figsize=(10.4, 0.3 * len(places) + 1.2), layout="constrained")
    panels = figure.subplots(1, len(pairs), squeeze=False, sharey=True)[0]
    for axes, (titles, members) in zip(panels, pairs.items(), strict=True):
        for one in members:
            row = places.index(one.setting)
            if one.low is not None and one.high is not None:
                axes.plot([one.low, one.high], [row, row], color="#9fb0bf", lw=2.2, solid_capstyle="round")
            marker = MARKERS[calibrations.index(one.setting.calibration) % len(MARKERS)]
            axes.plot(one.rho, row, marker, color=INK, ms=6)
        axes.axvline(0, color=GREY, lw=0.9)
        axes.set_xlim(-1.08, 1.08)
        axes.set_xticks([-1, -0.5, 0, 0.5, 1])
        axes.set_title("\nand ".join(titles), fontsize=TITLE, color=INK, loc="left")
        axes.set_xlabel("Spearman's ρ", fontsize=TEXT, color=INK)
        finish(axes, "x")
    labels = [
        (f"{short(place.model, 18)}, " if models else "") + f"{short(place.calibration, 26)}, M = {place.remove}"
        for place in places
    ]
    panels[0].set_yticks(range(len(places)), labels)
    panels[0].set_ylim(len(places) - 0.4, -0.6)
    caption = (
        "Right of the line, the searcher that is better by the one is better by the other too; left of it, worse. Bars "
        "are 95 % bootstrap intervals."
    )
    alt = "Rank correlations: " + "; ".join(
        f"{one.setting.model}, {one.setting.calibration}, M = {one.setting.remove}, {one.first.title} and "
        f"{one.second.title}: {one.rho:+.2f}"
        for one in known
    )
    return Picture("correlations", "How rankings go together", caption, alt, figure)


def variance_picture(splits: Sequence[Split]) -> Picture | None:
    """Shares of variance as bars."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    if not splits:
        return None
    figure = Figure(figsize=(8.6, 0.36 * len(splits) + 1.3), layout="constrained")
    axes = figure.subplots()
    models = len({one.panel.model for one in splits}) > 1
    for row, one in enumerate(splits):
        left = 0.0
        for part, colour in _PARTS:
            share = getattr(one, part) or 0.0
            axes.barh(row, share, left=left, color=colour, height=0.7)
            if share > 0.06:
                dark = part in ("calibration",)
                axes.text(left + share / 2, row, f"{100 * share:.0f} %", ha="center", va="center", fontsize=TEXT,
                          color="white" if dark else INK)  # fmt: skip
            left += share
    labels = [
        (f"{short(one.panel.model, 20)}, " if models else "") + f"{one.title}, M = {one.panel.remove}" for one in splits
    ]
    axes.set_yticks(range(len(splits)), labels)
    axes.set_ylim(len(splits) - 0.4, -0.6)
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    axes.set_xlabel("share of the variance (η²)", fontsize=TEXT, color=INK)
    finish(axes, "x")
    used = [(part, colour) for part, colour in _PARTS if any(getattr(one, part) is not None for one in splits)]
    names = {"residual": "the rest: seeds or noise", "interaction": "both together (interaction)"}
    legend(figure, [Patch(color=colour, label=names.get(part, part)) for part, colour in used])
    caption = "What the differences between checkpoints of one model and M go back to. " + (
        "With one seed the interaction cannot be told from noise and is in the rest."
    )
    alt = "Shares of variance: " + "; ".join(
        f"{label}: calibration {one.calibration:.0%}, searcher {one.searcher:.0%}"
        for label, one in zip(labels, splits, strict=True)
    )
    return Picture("variance", "What results vary with", caption, alt, figure)
