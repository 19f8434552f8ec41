"""Figures of losses by number of layers removed, by evaluations of a search, and by tokens of a training."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from raysearch.core import style
from raysearch.reporting.figures.picture import Palette, Picture, grid, log_scale, pictures
from raysearch.studies.result import RecoveredMask, StudyResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_Paths = tuple[str, str, Mapping[str, Mapping[int, float]]]  # calibration, unit, losses by searcher and size, from 0
_Courses = tuple[int, str, pd.DataFrame]  # M, calibration, the searches


def path_pictures(results: StudyResult, palette: Palette) -> list[Picture]:
    """Return for each model the lowest loss by number of layers removed, a panel per calibration, a line per searcher.

    A line shows the searches of a searcher with the largest M, as the mean over draws and seeds.

    Args:
        results: The study.
        palette: The looks of its searchers.
    """
    panels: list[tuple[str, _Paths]] = []
    for (model, calibration), cells in _recorded(results, "path").groupby(["model", "calibration"], sort=False):
        paths = _paths(cells)
        if any(len(path) > 2 for path in paths.values()):
            panels.append((model, (calibration, cells["outcome"].iloc[0].measure.unit, paths)))
    return pictures("paths", panels, partial(_path_picture, palette))


def progress_pictures(results: StudyResult, palette: Palette) -> list[Picture]:
    """Return for each model the best loss so far by evaluations, a panel per setting, a line per search.

    Args:
        results: The study.
        palette: The looks of its searchers.
    """
    recorded = _recorded(results, "best_so_far")
    panels = (
        (model, (remove, calibration, cells))
        for (model, remove, calibration), cells in recorded.groupby(["model", "remove", "calibration"], sort=False)
    )
    return pictures("progress", panels, partial(_progress_picture, palette))


def _recorded(results: StudyResult, course: str) -> pd.DataFrame:
    """Return the searches that have recorded a course, an attribute of their outcomes, a row each."""
    cells = [vars(cell) for cell in results.cells if cell.outcome and getattr(cell.outcome, course)]
    return pd.DataFrame(cells, columns=["model", "calibration", "searcher", "remove", "seed", "outcome"])


def _paths(cells: pd.DataFrame) -> dict[str, dict[int, float]]:
    """Return by searcher the mean loss over draws and seeds, at size 0 and each size that all of them have."""
    paths = {}
    for searcher, searches in cells.groupby("searcher", sort=False):
        largest = searches.loc[searches["remove"] == searches["remove"].max(), "outcome"]
        losses = [{0: outcome.dense_loss, **outcome.path} for outcome in largest]
        path = pd.DataFrame(losses).dropna(axis="columns").mean().sort_index()
        paths[searcher] = path[np.isfinite(path)].to_dict()
    return paths


def _path_picture(palette: Palette, name: str, model: str, panels: list[_Paths]) -> Picture:
    figure, places = grid(len(panels), 3.3)
    for axes, (calibration, unit, paths) in zip(places, panels, strict=True):
        dense = next(iter(paths.values()))[0]
        bottom, top = style.axis_limits([dense, *(path[max(path)] for path in paths.values())])
        for searcher, points in paths.items():
            axes.plot(list(points), list(points.values()), ms=4, lw=1.6, **palette.line(searcher))
            for size, loss in points.items():
                if loss > top:
                    style.mark_beyond(axes, size, palette.colours[searcher])
        axes.axhline(dense, color=style.GREY, lw=0.9, ls="--")
        axes.set_ylim(bottom, top)
        axes.set_xticks(range(max(max(path) for path in paths.values()) + 1))
        _finish(axes, calibration, "layers removed (0: dense)", f"loss ({unit})")
    style.legend(figure, palette.line_keys(searcher for *_, paths in panels for searcher in paths))
    caption = (
        "The lowest loss that a search met at each number of layers removed, on its way to the largest M; the mean "
        "over draws and seeds. Dashed: the dense model. An arrow: the loss lies off the scale, which is chosen for the "
        "others."
    )
    return Picture(name, f"{model}: loss by number of layers removed", caption, figure)


def _progress_picture(palette: Palette, name: str, model: str, panels: list[_Courses]) -> Picture:
    ordered = sorted(panels, key=lambda panel: panel[0])
    figure, places = grid(len(panels), 2.9)
    for axes, (remove, calibration, cells) in zip(places, ordered, strict=True):
        ends = []
        for cell in cells.itertuples():
            course = [(count, loss) for count, loss in cell.outcome.best_so_far if math.isfinite(loss)]
            if not course:
                continue
            colour = palette.colours[cell.searcher]
            count, loss = course[-1]
            course.append((max(cell.outcome.evaluations, count), loss))
            axes.step(*zip(*course, strict=True), where="post", lw=1.4, color=colour, ls=palette.lines[cell.searcher])
            axes.plot(count, loss, palette.shapes[cell.searcher], color=colour, ms=5)
            ends.append(loss)
        log_scale(axes)
        if ends:
            bottom, top = style.axis_limits(ends)
            axes.set_ylim(bottom, top + 2 * (top - bottom))
        unit = cells["outcome"].iloc[0].measure.unit
        _finish(axes, f"{calibration}, M = {remove}", "evaluations (log scale)", f"loss ({unit})")
    style.legend(figure, palette.line_keys(searcher for *_, cells in ordered for searcher in cells["searcher"]))
    caption = (
        "The lowest loss of a mask with M layers after so many evaluations, a line a search, so several for several "
        "draws or seeds; dots mark the last improvement. The scale is chosen for where searches end; lines may enter "
        "from above."
    )
    return Picture(name, f"{model}: best loss so far", caption, figure)


def recovery_pictures(results: StudyResult, palette: Palette) -> list[Picture]:
    """Return for each model the loss by tokens, a panel per recovery method, a line per mask.

    Args:
        results: The study.
        palette: The looks of its searchers.
    """
    trained = ((mask.model, mask) for mask in results.recovered if mask.record.training.held_out)
    return pictures("recovery", trained, partial(_recovery_picture, palette))


def _recovery_picture(palette: Palette, name: str, model: str, trained: list[RecoveredMask]) -> Picture:
    from matplotlib.lines import Line2D

    methods = dict.fromkeys(mask.record.way for mask in trained)
    figure, places = grid(len(methods), 2.9)
    looks: dict[str, dict[str, Any]] = {}
    markers = itertools.cycle(style.MARKERS)
    for axes, method in zip(places, methods, strict=True):
        for mask in trained:
            if mask.record.way != method:
                continue
            label = f"{mask.searchers}, M = {mask.remove}" if mask.remove else "dense"
            if label not in looks:
                searcher = mask.found_by[0]
                looks[label] = {
                    "color": palette.colours.get(searcher, style.GREY),
                    "ls": palette.lines.get(searcher, "--"),
                    "marker": next(markers),
                    "ms": 4,
                    "lw": 1.4,
                }
            axes.plot(*zip(*mask.record.training.held_out, strict=True), **looks[label])
        _finish(axes, method, "tokens", "held-out loss (nats per token)")
    style.legend(figure, [Line2D([], [], label=label, **look) for label, look in looks.items()])
    caption = (
        "The loss on held-out rows by the tokens that a model was trained on, a panel a way of training. Losses of "
        "different ways are of different rows, or distances from the dense model, and do not compare."
    )
    return Picture(name, f"{model}: loss by tokens of training", caption, figure)


def _finish(axes: Axes, title: str, x_label: str, y_label: str) -> None:
    style.name_axes(axes, style.short(title, 48), x_label, y_label)
    style.finish(axes)
