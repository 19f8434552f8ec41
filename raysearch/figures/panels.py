"""The panels of figures: grids of them, logarithmic scales, stacked bars, labels of rows."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from raysearch.figures import style
from raysearch.text import numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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

    Returns:
        The figure, and the axes of its panels, [n_panels].
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
