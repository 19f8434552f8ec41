"""The parts of figures: a study's palette, their words, several panels in one, and their bytes."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from raysearch.core import style
from raysearch.reporting.tables import numbers
from raysearch.studies.result import StudyResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_Panel = TypeVar("_Panel")


@dataclass(frozen=True)
class Palette:
    """The colour, shape and line of each searcher and the filling of each calibration, in every figure.

    Points and lines differ without their colours too; no two of 240 searchers have colour and shape in common.
    """

    colours: Mapping[str, str]
    shapes: Mapping[str, str]
    lines: Mapping[str, Any]
    fillings: Mapping[str, Any]

    @classmethod
    def of(cls, results: StudyResult) -> Palette:
        """Take them in the study's order, so that they stay where a search is added at the end."""
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
        """Return the entries of a legend: searchers, fillings of calibrations if there are several, the dense model."""
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
        name: Of its files.
        caption: Under it: how to read it.
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
        name: What the pictures' names begin with; a number follows.
        panels: What to show, each with the label of its model.
        draw: Makes a picture from its name, the model and what to show of it.
    """
    by_model: dict[str, list[_Panel]] = {}
    for model, panel in panels:
        by_model.setdefault(model, []).append(panel)
    return [draw(f"{name}_{number}", *one) for number, one in enumerate(by_model.items(), 1)]


def grid(
    n_panels: int, height: float, width: float | None = None, columns: int = 2, foot: float = 0.7, **options: Any
) -> tuple[Figure, Sequence[Axes]]:
    """Return a figure of panels, and the panels row by row.

    Args:
        n_panels: How many.
        height: Of a panel, in inches.
        width: Of the figure, in inches; None for the usual one of so many columns.
        columns: The most in a row.
        foot: What is left for a legend, in inches.
        options: More of ``Figure.subplots``.
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
    """Set a logarithmic scale with ticks at 1, 2 and 5 of each power of ten; on a short one at even steps."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    axes.set_xscale("log")
    low, high = axes.get_xlim()
    parts = (1.0, 2.0, 3.0, 5.0, 7.0) if high / low < 8 else (1.0, 2.0, 5.0) if high / low < 200 else (1.0,)
    is_short = high / low < 3
    axes.xaxis.set_major_locator(MaxNLocator(5) if is_short else LogLocator(10, subs=parts, numticks=5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda number, _: numbers.amount(number)))
    axes.xaxis.set_minor_formatter(NullFormatter())


def stack(axes: Axes, row: int, parts: Mapping[str, float], colours: Mapping[str, str]) -> list[float]:
    """Draw the parts of a whole as one bar, in the order of their colours, and return where each begins."""
    sizes = [parts[part] for part in colours]
    starts = [0.0, *itertools.accumulate(sizes[:-1])]
    axes.barh(row, sizes, left=starts, color=[*colours.values()], height=0.7)
    return starts


def name_rows(axes: Axes, labels: Sequence[str]) -> None:
    """Write the labels of rows from the top down."""
    axes.set_yticks(range(len(labels)), [style.plain(label) for label in labels])
    axes.set_ylim(len(labels) - 0.4, -0.6)


def png(figure: Figure) -> bytes:
    """A figure as PNG; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150, metadata={"Software": None})
    return buffer.getvalue()


def svg(figure: Figure, name: str) -> str:
    """A figure as SVG, its words as text; the same figure gives the same SVG.

    Several may stand on one page, so ids hang on the name of the figure, and those that all figures have are left out.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    buffer = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        style.place(figure, FigureCanvasSVG)
        figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", buffer.getvalue(), flags=re.DOTALL)
    text = re.sub(r'(?<= d=")[^"]+', lambda found: " ".join(found[0].split()), text)
    text = re.sub(r"-?\d+\.\d{3,}(?=[^<>]*>)", lambda found: f"{float(found[0]):.2f}", text)  # 1/100 of a point
    text = re.sub(r">\s*\n\s*<", ">\n<", text)
    return re.sub(r'(<(?:g|image)\b[^<>]*?) id="[^"]+"', r"\1", text)
