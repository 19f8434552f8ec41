"""Figures of losses by number of layers removed, by evaluations of a search, and by tokens of a training."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from raysearch.figures import style
from raysearch.figures.palette import Palette
from raysearch.figures.panels import grid, log_scale
from raysearch.figures.picture import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class PathPanel:
    """The lowest losses by size of masks, on one calibration.

    Args:
        calibration: The calibration.
        unit: The unit of its losses.
        paths: The losses by searcher and size, from 0, the dense model.
        plural: What sizes count: ``layers`` …
    """

    calibration: str
    unit: str
    paths: Mapping[str, Mapping[int, float]]
    plural: str


def path_picture(palette: Palette, name: str, model: str, panels: Sequence[PathPanel]) -> Picture:
    """Draw the lowest loss by size of masks: a panel per calibration, a line per searcher.

    Args:
        palette: The looks of the searchers.
        name: The name of the picture.
        model: The model.
        panels: The panels.

    Returns:
        The picture, with its title and caption.
    """
    figure, all_axes = grid(len(panels), 3.3)
    for axes, panel in zip(all_axes, panels, strict=True):
        dense = next(iter(panel.paths.values()))[0]
        bottom, top = style.axis_limits([dense, *(path[max(path)] for path in panel.paths.values())])
        for searcher, path in panel.paths.items():
            axes.plot(list(path), list(path.values()), ms=4, lw=1.6, **palette.line(searcher))
            for size, loss in path.items():
                if loss > top:
                    style.mark_beyond(axes, size, palette.colours[searcher])
        axes.axhline(dense, color=style.GREY, lw=0.9, ls="--")
        axes.set_ylim(bottom, top)
        axes.set_xticks(range(max(max(path) for path in panel.paths.values()) + 1))
        _finish(axes, panel.calibration, f"{panel.plural} removed (0: dense)", f"loss ({panel.unit})")
    style.legend(figure, palette.line_keys(searcher for panel in panels for searcher in panel.paths))
    plural = panels[0].plural
    caption = (
        f"A line shows the lowest loss of a search at each number of removed {plural}, up to the largest M. It is the "
        "mean over draws and seeds. The dashed line is the dense model. An arrow marks a loss beyond the scale, "
        "which is chosen for the other losses."
    )
    return Picture(name, f"{model}: loss by number of {plural} removed", caption, figure)


@dataclass(frozen=True)
class Course:
    """The course of one search.

    Args:
        searcher: The searcher.
        improvements: The number of evaluations, and the lowest loss then, at each improvement.
        evaluations: The number of all evaluations.
    """

    searcher: str
    improvements: Sequence[tuple[float, float]]
    evaluations: float


@dataclass(frozen=True)
class CoursePanel:
    """The courses of the searches of one calibration and M.

    Args:
        calibration: The calibration.
        remove: M.
        unit: The unit of the losses.
        courses: The courses.
    """

    calibration: str
    remove: int
    unit: str
    courses: Sequence[Course]


def progress_picture(palette: Palette, name: str, model: str, panels: Sequence[CoursePanel]) -> Picture:
    """Draw the best loss so far by evaluations: a panel per calibration and M, a line per search.

    Args:
        palette: The looks of the searchers.
        name: The name of the picture.
        model: The model.
        panels: The panels.

    Returns:
        The picture, with its title and caption.
    """
    ordered = sorted(panels, key=lambda panel: panel.remove)
    figure, all_axes = grid(len(panels), 2.9)
    for axes, panel in zip(all_axes, ordered, strict=True):
        ends = []
        for course in panel.courses:
            points = [(count, loss) for count, loss in course.improvements if math.isfinite(loss)]
            if not points:
                continue
            colour = palette.colours[course.searcher]
            count, loss = points[-1]
            points.append((max(course.evaluations, count), loss))
            line = palette.lines[course.searcher]
            axes.step(*zip(*points, strict=True), where="post", lw=1.4, color=colour, ls=line)
            axes.plot(count, loss, palette.shapes[course.searcher], color=colour, ms=5)
            ends.append(loss)
        log_scale(axes)
        if ends:
            bottom, top = style.axis_limits(ends)
            axes.set_ylim(bottom, top + 2 * (top - bottom))
        title = f"{panel.calibration}, M = {panel.remove}"
        _finish(axes, title, "evaluations (log scale)", f"loss ({panel.unit})")
    style.legend(figure, palette.line_keys(course.searcher for panel in ordered for course in panel.courses))
    caption = (
        "Each line shows the lowest loss of a mask with M layers after a number of evaluations. Each search has a "
        "line, so a searcher has several lines if there are several draws or seeds. A dot marks the last "
        "improvement. The scale is chosen for the ends of the searches, so a line may begin above it."
    )
    return Picture(name, f"{model}: best loss so far", caption, figure)


@dataclass(frozen=True)
class TrainingCurve:
    """The loss of a model on held-out rows, by the tokens that it was trained on.

    Args:
        method: The method of training.
        label: The label of the model.
        searcher: The searcher that found its mask.
        losses: The number of tokens and the loss, at each point.
    """

    method: str
    label: str
    searcher: str
    losses: Sequence[tuple[float, float]]


def recovery_picture(palette: Palette, name: str, model: str, curves: Sequence[TrainingCurve]) -> Picture:
    """Draw the loss by tokens of training: a panel per method, a line per mask.

    Args:
        palette: The looks of the searchers.
        name: The name of the picture.
        model: The model.
        curves: The curves.

    Returns:
        The picture, with its title and caption.
    """
    from matplotlib.lines import Line2D

    methods = dict.fromkeys(curve.method for curve in curves)
    figure, all_axes = grid(len(methods), 2.9)
    looks: dict[str, dict[str, Any]] = {}
    markers = itertools.cycle(style.MARKERS)
    for axes, method in zip(all_axes, methods, strict=True):
        for curve in curves:
            if curve.method != method:
                continue
            if curve.label not in looks:
                looks[curve.label] = {
                    "color": palette.colours.get(curve.searcher, style.GREY),
                    "ls": palette.lines.get(curve.searcher, "--"),
                    "marker": next(markers),
                    "ms": 4,
                    "lw": 1.4,
                }
            axes.plot(*zip(*curve.losses, strict=True), **looks[curve.label])
        _finish(axes, method, "tokens", "held-out loss (nats per token)")
    style.legend(figure, [Line2D([], [], label=label, **look) for label, look in looks.items()])
    caption = (
        "The loss on held-out rows, by the number of tokens that a model was trained on. Each panel is a training "
        "method. Do not compare losses of different methods: they are of different rows, or they are distances from "
        "the dense model."
    )
    return Picture(name, f"{model}: loss by tokens of training", caption, figure)


def _finish(axes: Axes, title: str, x_label: str, y_label: str) -> None:
    style.name_axes(axes, style.short(title, 48), x_label, y_label)
    style.finish(axes)
