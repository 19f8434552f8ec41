"""How searches went: what each layer more costs, and how the loss came down with the evaluations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from raysearch.reporting.figures.style import GREY, INK, TEXT, TITLE, Palette, Picture, finish, legend, short
from raysearch.study.result import CellResult, Outcome, StudyResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_Found = tuple[CellResult, Outcome]


def path_pictures(results: StudyResult, palette: Palette) -> list[Picture]:
    """For each model the lowest loss by number of layers removed, a panel a calibration, a line a searcher.

    Of a searcher's searches the one with the largest M is drawn, its seeds together as their mean.
    """
    found = []
    for number, (model, cells) in enumerate(_by(_outcomes(results), lambda cell: cell.model), 1):
        panels = [(name, _paths(of)) for name, of in _by(cells, lambda cell: cell.calibration)]
        panels = [(name, paths) for name, paths in panels if any(len(path) > 1 for path in paths.values())]
        if panels:
            found.append(_path_picture(f"paths_{number}", model, panels, cells, palette))
    return found


def progress_pictures(results: StudyResult, palette: Palette) -> list[Picture]:
    """For each model the best loss so far by evaluations, a panel a setting, a line a search."""
    found = []
    for number, (model, cells) in enumerate(_by(_outcomes(results), lambda cell: cell.model), 1):
        parts = _by([one for one in cells if one[1].best_so_far], lambda cell: (cell.remove, cell.calibration))
        panels = sorted(parts, key=lambda part: part[0][0])
        if panels:
            found.append(_progress_picture(f"progress_{number}", model, panels, palette))
    return found


def _outcomes(results: StudyResult) -> list[_Found]:
    return [(cell, cell.outcome) for cell in results.cells if cell.outcome is not None]


def _by(cells: Iterable[_Found], key: Any) -> list[tuple[Any, list[_Found]]]:
    groups: dict[Any, list[_Found]] = {}
    for cell, outcome in cells:
        groups.setdefault(key(cell), []).append((cell, outcome))
    return list(groups.items())


def _paths(cells: list[_Found]) -> dict[str, dict[int, float]]:
    """By searcher the mean over seeds of the loss at each size that all seeds have."""
    paths = {}
    for searcher, of in _by(cells, lambda cell: cell.searcher):
        most = max(cell.remove for cell, outcome in of if outcome.path) if any(o.path for _, o in of) else 0
        lines = [outcome.path for cell, outcome in of if cell.remove == most and outcome.path]
        sizes = sorted(set.intersection(*(set(line) for line in lines))) if lines else []
        path = {size: math.fsum(line[size] for line in lines) / len(lines) for size in sizes}
        paths[searcher] = {size: loss for size, loss in path.items() if math.isfinite(loss)}
    return paths


def _path_picture(
    name: str, model: str, panels: list[tuple[str, dict[str, dict[int, float]]]], cells: list[_Found], palette: Palette
) -> Picture:
    figure, grid = _grid(len(panels), 3.3)
    for axes, (calibration, paths) in zip(grid, panels, strict=False):
        outcome = next(found for cell, found in cells if cell.calibration == calibration)
        for searcher, path in paths.items():
            points = {0: outcome.dense_loss, **path}
            style = {"color": palette.colours[searcher], "ls": palette.lines[searcher]}
            axes.plot(list(points), list(points.values()), marker="o", ms=3.5, lw=1.6, **style)
        axes.axhline(outcome.dense_loss, color=GREY, lw=0.9, ls="--")
        axes.set_xticks(range(0, max(max(path, default=0) for path in paths.values()) + 1))
        _label(axes, calibration, "layers removed (0: dense)", outcome)
    legend(figure, _lines(dict.fromkeys(name for _, paths in panels for name in paths), palette))
    caption = (
        "The lowest loss that a search met at each number of layers removed, on its way to the largest M; the mean "
        "over seeds. Dashed: the dense model."
    )
    alt = "Lines: " + "; ".join(
        f"{calibration}, {searcher}: " + ", ".join(f"{size}: {loss:.3f}" for size, loss in path.items())
        for calibration, paths in panels
        for searcher, path in paths.items()
    )
    return Picture(name, f"{model}: loss by number of layers removed", caption, alt, figure)


def _progress_picture(
    name: str, model: str, panels: list[tuple[tuple[int, str], list[_Found]]], palette: Palette
) -> Picture:
    figure, grid = _grid(len(panels), 2.9)
    for axes, ((remove, calibration), cells) in zip(grid, panels, strict=False):
        ends = []
        for cell, outcome in cells:
            style = {"color": palette.colours[cell.searcher], "ls": palette.lines[cell.searcher]}
            known = [(count, loss) for count, loss in outcome.best_so_far if math.isfinite(loss)]
            if not known:
                continue
            counts, losses = [count for count, _ in known], [loss for _, loss in known]
            axes.step(
                [*counts, max(outcome.evaluations, counts[-1])], [*losses, losses[-1]], where="post", lw=1.4, **style
            )
            axes.plot(counts[-1], losses[-1], "o", color=palette.colours[cell.searcher], ms=4)
            ends.append((losses[0], losses[-1]))
        axes.set_xscale("log")
        if ends:
            axes.set_ylim(*_window(ends))
        _label(axes, f"{calibration}, M = {remove}", "evaluations (log scale)", cells[0][1])
        axes.xaxis.set_major_formatter(lambda number, _: f"{number:,.10g}")
    legend(figure, _lines(dict.fromkeys(cell.searcher for _, cells in panels for cell, _ in cells), palette))
    caption = (
        "The lowest loss of a mask with M layers after so many evaluations, a line a search, so several for several "
        "seeds; dots mark the last improvement. The scale is chosen for where searches end; lines may enter from above."
    )
    alt = "Lines: " + "; ".join(
        f"{cell.calibration}, M = {remove}, {cell.searcher}, seed {cell.seed}: {outcome.best_so_far[-1][1]:.4f} after "
        f"{outcome.best_so_far[-1][0]:,} evaluations"
        for (remove, _), cells in panels
        for cell, outcome in cells
    )
    return Picture(name, f"{model}: best loss so far", caption, alt, figure)


def _grid(n_panels: int, height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    columns = min(n_panels, 2)
    lines = -(-n_panels // columns)
    figure = Figure(figsize=(5.2 * columns if columns > 1 else 7.0, height * lines + 0.7), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False).flatten()
    for axes in grid[n_panels:]:
        axes.set_visible(False)
    return figure, grid


def _label(axes: Axes, title: str, x_label: str, outcome: Outcome) -> None:
    axes.set_title(short(title, 48), fontsize=TITLE, color=INK, loc="left")
    axes.set_xlabel(x_label, fontsize=TEXT, color=INK)
    axes.set_ylabel(f"loss ({outcome.measure.unit})", fontsize=TEXT, color=INK)
    finish(axes)


def _lines(searchers: Iterable[str], palette: Palette) -> list[Any]:
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], color=palette.colours[name], ls=palette.lines[name], lw=1.8, label=short(name, 40))
        for name in searchers
    ]


def _window(ends: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The losses to show: where searches end, and as much of where they began as does not flatten that."""
    first, last = max(start for start, _ in ends), [end for _, end in ends]
    low, high = min(last), max(last)
    reach = max(high - low, 0.02 * abs(low), 1e-9)
    top = min(first, high + 2.5 * reach)
    pad = 0.05 * max(top - low, reach)
    return low - pad, top + pad
