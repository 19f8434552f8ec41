"""The figures of generated texts: why code fails, and how well the model still solves small arithmetic problems.

Source: Figures 4 and 5b of "On the Limits of Layer Pruning for Generative Reasoning".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from raysearch.figures import style
from raysearch.figures.palette import Palette
from raysearch.figures.panels import grid, name_rows, stack
from raysearch.figures.picture import Picture

_COLOURS = {
    "parenthesis": style.RED,
    "other_syntax": style.AMBER,
    "undefined_name": style.BLUE,
    "time_or_depth": style.PINK,
    "other": style.STEEL,
    "assertion": style.LIGHT_GREY,
}


@dataclass(frozen=True)
class FailurePanel:
    """Why the answers to a task fail.

    Args:
        title: The title.
        bars: The percentages by the label of the bar and the reason.
    """

    title: str
    bars: Mapping[str, Mapping[str, float]]


def failure_picture(name: str, model: str, panels: Sequence[FailurePanel]) -> Picture:
    """Draw the reasons why code fails: a panel per task and calibration, a bar per searcher and M.

    Args:
        name: The name of the picture.
        model: The model.
        panels: The panels.

    Returns:
        The picture, with its title and caption.
    """
    from matplotlib.patches import Patch

    most_bars = max(len(panel.bars) for panel in panels)
    figure, all_axes = grid(len(panels), 0.9 + 0.3 * most_bars, 8.6, columns=1, foot=0.8)
    for axes, panel in zip(all_axes, panels, strict=True):
        for row, bar in enumerate(panel.bars.values()):
            stack(axes, row, bar, _COLOURS)
        name_rows(axes, [style.short(label, 34) for label in panel.bars])
        axes.set_xlim(0, 100)
        style.name_axes(axes, panel.title, "answers that fail (%)")
        style.finish(axes, "x")
    style.legend(figure, [Patch(color=colour, label=_reason_text(reason)) for reason, colour in _COLOURS.items()])
    caption = "The share of all answers that fail for each reason. The other answers pass."
    return Picture(name, f"Why the code of {model} fails", caption, figure)


def _reason_text(reason: str) -> str:
    return "failed assertion" if reason == "assertion" else reason.replace("_", " ")


@dataclass(frozen=True)
class ProbeLine:
    """The numbers of a searcher on a calibration, by M."""

    searcher: str
    calibration: str
    values: Mapping[int, float]


@dataclass(frozen=True)
class ProbePanel:
    """One number of the arithmetic probe.

    Args:
        title: Its name.
        unit: Its unit.
        dense: The dense model's number.
        lines: The lines.
        plural: What M counts: ``layers`` …
    """

    title: str
    unit: str
    dense: float
    lines: Sequence[ProbeLine]
    plural: str


def probe_picture(palette: Palette, name: str, model: str, panels: Sequence[ProbePanel]) -> Picture:
    """Draw the arithmetic probe by M: a panel per number, a line per searcher.

    Args:
        palette: The looks of the searchers.
        name: The name of the picture.
        model: The model.
        panels: The panels.

    Returns:
        The picture, with its title and caption.
    """
    figure, all_axes = grid(len(panels), 2.9)
    for axes, panel in zip(all_axes, panels, strict=True):
        for line in panel.lines:
            filling = palette.fillings[line.calibration]
            sizes = [0, *line.values]
            values = [panel.dense, *line.values.values()]
            axes.plot(sizes, values, fillstyle=filling, ms=5, lw=1.4, **palette.line(line.searcher))
        axes.axhline(panel.dense, color=style.GREY, lw=0.9, ls="--")
        axes.set_xticks([0, *sorted({size for line in panel.lines for size in line.values})])
        style.name_axes(axes, panel.title, f"{panel.plural} removed (0: dense)", panel.unit)
        style.finish(axes)
    searchers = list(dict.fromkeys(line.searcher for line in panels[0].lines))
    calibrations = list(dict.fromkeys(line.calibration for line in panels[0].lines))
    style.legend(figure, palette.point_keys(searchers, calibrations))
    caption = (
        "The first digit of the answers to small problems such as (9 + 8) * 2: how often the right digit is the "
        "likeliest of the ten, and its mean log-probability. Both are means over draws and seeds. The dashed line is "
        "the dense model."
    )
    return Picture(name, f"{model}: the arithmetic probe", caption, figure)
