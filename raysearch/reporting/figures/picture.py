"""The parts that figures share: a study's palette, grids of panels, scales and labels, and the bytes of a figure."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from raysearch.core import style
from raysearch.studies.result import StudyResult
from raysearch.text import numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_Panel = TypeVar("_Panel")


@dataclass(frozen=True)
class Palette:
    """The colour, shape and line of each searcher and the filling of each calibration, the same in every figure.

    Points and lines can be distinguished without their colours. No two of 240 searchers share both colour and shape.

    Args:
        colours: The colour of each searcher.
        shapes: The marker of each searcher's points.
        lines: The line style of each searcher.
        fillings: The fill style of the points of each calibration.
    """

    colours: Mapping[str, str]
    shapes: Mapping[str, str]
    lines: Mapping[str, Any]
    fillings: Mapping[str, Any]

    @classmethod
    def for_study(cls, results: StudyResult) -> Palette:
        """Return the palette of a study, in its order, so that a search added at the end changes no other look."""
        searchers = dict.fromkeys(cell.searcher for cell in results.cells)
        calibrations = dict.fromkeys(cell.calibration for cell in results.cells)
        return cls(
            colours=dict(zip(searchers, itertools.cycle(style.COLOURS), strict=False)),
            shapes=dict(zip(searchers, itertools.cycle(style.SHAPES), strict=False)),
            lines=dict(zip(searchers, itertools.cycle(style.LINES), strict=False)),
            fillings=dict(zip(calibrations, itertools.cycle(style.FILLINGS), strict=False)),
        )

    def point(self, searcher: str) -> dict[str, Any]:
        """Return the look of a searcher's points, as options of Matplotlib."""
        return {"color": self.colours[searcher], "marker": self.shapes[searcher]}

    def line(self, searcher: str) -> dict[str, Any]:
        """Return the look of a searcher's lines, with points on them."""
        return {**self.point(searcher), "ls": self.lines[searcher]}

    def point_keys(self, searchers: Iterable[str], calibrations: Sequence[str] = (), dense: bool = False) -> list[Any]:
        """Return the entries of a legend of points.

        Args:
            searchers: The searchers.
            calibrations: The calibrations, whose fillings are shown if there are several.
            dense: Whether the dense model has an entry.
        """
        from matplotlib.lines import Line2D

        entry = partial(Line2D, [], [], ls="", ms=7)
        keys = [entry(label=style.short(name, 40), **self.point(name)) for name in searchers]
        if len(calibrations) > 1:
            keys += [
                entry(marker="o", color=style.INK, fillstyle=self.fillings[name], label=style.short(name, 40))
                for name in calibrations
            ]
        return [*keys, entry(marker="*", color=style.INK, label="dense", ms=11)] if dense else keys

    def line_keys(self, searchers: Iterable[str]) -> list[Any]:
        """Return the entries of a legend of lines, each searcher once."""
        from matplotlib.lines import Line2D

        return [
            Line2D([], [], ms=5, lw=1.8, label=style.short(name, 40), **self.line(name))
            for name in dict.fromkeys(searchers)
        ]


@dataclass(frozen=True)
class Picture:
    """A figure with its title and caption.

    Args:
        name: The name of its files, without the suffix.
        title: Its title.
        caption: The text under it, which explains how to read it.
        figure: The figure.
    """

    name: str
    title: str
    caption: str
    figure: Figure


def pictures(
    name: str, panels: Iterable[tuple[str, _Panel]], draw: Callable[[str, str, list[_Panel]], Picture]
) -> list[Picture]:
    """Return a picture for each model.

    Args:
        name: The first part of the pictures' names; a number follows.
        panels: The data of the panels, each with the label of its model.
        draw: Makes a picture from its name, the model and the panels of the model.
    """
    by_model: dict[str, list[_Panel]] = {}
    for model, panel in panels:
        by_model.setdefault(model, []).append(panel)
    return [draw(f"{name}_{number}", model, of_model) for number, (model, of_model) in enumerate(by_model.items(), 1)]


def grid(
    n_panels: int, height: float, width: float | None = None, columns: int = 2, foot: float = 0.7, **options: Any
) -> tuple[Figure, Sequence[Axes]]:
    """Return a figure of panels, and the panels row by row.

    Args:
        n_panels: The number of panels.
        height: The height of a panel, in inches.
        width: The width of the figure, in inches; None for the usual width of so many columns.
        columns: The most panels in a row.
        foot: The height of the legend, in inches.
        options: Other arguments of ``Figure.subplots``.
    """
    from matplotlib.figure import Figure

    columns = min(n_panels, columns)
    rows = -(-n_panels // columns)
    width = width or (7.0 if columns == 1 else 5.2 * columns)
    figure = Figure(figsize=(width, height * rows + foot), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, **options).flatten()
    for axes in panels[n_panels:]:
        axes.set_visible(False)
    return figure, panels[:n_panels]


def log_scale(axes: Axes) -> None:
    """Set a logarithmic x scale with ticks at 1, 2 and 5 of each power of ten; a short scale has even steps."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    axes.set_xscale("log")
    low, high = axes.get_xlim()
    steps: tuple[float, ...] = (1.0,)
    if high / low < 8:
        steps = (1.0, 2.0, 3.0, 5.0, 7.0)
    elif high / low < 200:
        steps = (1.0, 2.0, 5.0)
    is_short = high / low < 3
    axes.xaxis.set_major_locator(MaxNLocator(5) if is_short else LogLocator(10, subs=steps, numticks=5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda number, _: numbers.amount(number)))
    axes.xaxis.set_minor_formatter(NullFormatter())


def stack(axes: Axes, row: int, parts: Mapping[str, float], colours: Mapping[str, str]) -> list[float]:
    """Draw the parts of a whole as one horizontal bar, in the order of their colours.

    Args:
        axes: The panel.
        row: The place of the bar.
        parts: The size of each part.
        colours: The colour of each part.

    Returns:
        The place at which each part begins.
    """
    sizes = [parts[part] for part in colours]
    starts = [0.0, *itertools.accumulate(sizes[:-1])]
    axes.barh(row, sizes, left=starts, color=[*colours.values()], height=0.7)
    return starts


def name_rows(axes: Axes, labels: Sequence[str]) -> None:
    """Write the labels of rows from the top to the bottom.

    Args:
        axes: The panel.
        labels: The labels.
    """
    axes.set_yticks(range(len(labels)), [style.plain(label) for label in labels])
    axes.set_ylim(len(labels) - 0.4, -0.6)


def png(figure: Figure) -> bytes:
    """Return a figure as PNG; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150, metadata={"Software": None})
    return buffer.getvalue()


def svg(figure: Figure, name: str) -> str:
    """Return a figure as SVG, its labels as text; the same figure gives the same SVG.

    A page may have several figures. So ids depend on the name of the figure, and ids that all figures have are left
    out.

    Args:
        figure: The figure.
        name: Its name, which is unique on the page.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    buffer = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        style.place(figure, FigureCanvasSVG)
        figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", buffer.getvalue(), flags=re.DOTALL)
    text = re.sub(r'(?<= d=")[^"]+', lambda match: " ".join(match[0].split()), text)
    text = re.sub(r"-?\d+\.\d{3,}(?=[^<>]*>)", lambda match: f"{float(match[0]):.2f}", text)  # 1/100 of a point
    text = re.sub(r">\s*\n\s*<", ">\n<", text)
    return re.sub(r'(<(?:g|image)\b[^<>]*?) id="[^"]+"', r"\1", text)
