"""The style of all figures: colours, a colour and a shape for each searcher, a filling for each calibration."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#22303c"
GREY = "#6b7884"
PALE = "#eef1f4"
LINE = "#b8c4cf"
WHITE = "white"
BLUE = "#0072B2"
ORANGE = "#D55E00"
GREEN = "#009E73"
PINK = "#CC79A7"
AMBER = "#E69F00"
RED = "#b2182b"
LIGHT_BLUE = "#9cc3de"
LIGHT_ORANGE = "#f0b99d"
LIGHT_GREY = "#c9d1d8"
STEEL = "#9fb0bf"

# Sizes of text in points. They are large enough for figures that a narrow window shrinks.
SMALL = 8
TEXT = 9
TITLE = 10

#: Distinct for people with colour blindness: the palette of Okabe and Ito without yellow, then Tol's muted palette.
COLOURS = (
    BLUE, ORANGE, GREEN, PINK, AMBER, "#56B4E9", "#4b4b4b", "#882255", "#999933", "#332288", "#44AA99", "#DDCC77",
    "#AA4499", "#117733", "#661100", "#6699CC",
)  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
SHAPES = ("o", "s", "^", "D", "v", "P", "X", "<", "p", ">", "h", "d", "8", "H", "*")
FILLINGS = ("full", "none", "left", "bottom", "right", "top")
LINES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5)))
SIZES = "viridis_r"  # colour map: from few to many layers
_PER_INCH = 12.5  # characters of a legend per inch
_HEADING = 12  # points
# The share of a panel that remains next to ticks, titles and legends.
_WIDTH = 0.8
_HEIGHT = 0.6
_EM = 0.68  # the width of a letter relative to its size, also in bold text


def axis_limits(values: Iterable[float]) -> tuple[float, float]:
    """Return the limits of an axis for finite values, without outliers that would compress all other points.

    An outlier lies above the lower three quarters of the values by more than four times their range.
    """
    # Distinct values: if two searchers have the same mask, a third one with another mask is no outlier.
    distinct = sorted({*values})
    if not distinct:
        return 0.0, 1.0
    last = len(distinct) - 1
    low = distinct[0]
    upper = distinct[max(min(1, last), (3 * last) // 4)]
    spread = (upper - low) or 0.02 * abs(low) or 1.0
    high = max(value for value in distinct if value <= upper + 4 * spread)
    pad = 0.08 * ((high - low) or spread)
    return low - pad, high + pad


def mark_beyond(axes: Axes, x: float, colour: str) -> None:
    """Mark at the upper edge that a point lies above the limit of the axis.

    Args:
        axes: The panel.
        x: The place of the point.
        colour: The colour of the point.
    """
    axes.axvline(x, lw=0)  # extends the x axis to this place
    axes.text(x, 1.0, "↑", color=colour, fontsize=TITLE, ha="center", transform=axes.get_xaxis_transform())


def short(label: str, most: int = 26) -> str:
    """Return a label for a figure, in which no part is read as a formula.

    Args:
        label: The label.
        most: The most characters; a longer label loses its middle.

    Returns:
        The label, to be passed to matplotlib.
    """
    if len(label) > most:
        tail = most // 3
        label = label[: most - tail - 1].rstrip() + "…" + label[-tail:].lstrip()
    return plain(label)


def wrapped(text: str, inches: float, points: float) -> str:
    """Break a text into lines: at spaces, or within a word that is longer than a line, such as a path.

    Args:
        text: The text; its line breaks stay.
        inches: The length of a line.
        points: The size of the letters.

    Returns:
        The text with line breaks.
    """
    most = max(8, int(72 * inches / (_EM * points)))
    return "\n".join(line for part in text.splitlines() for line in textwrap.wrap(part, most))


def name_figure(figure: Figure, title: str) -> None:
    """Write a figure's title, in as many lines as it needs.

    Args:
        figure: The figure.
        title: The title.
    """
    lines = plain(wrapped(title, 0.96 * figure.get_figwidth(), _HEADING))
    figure.suptitle(lines, color=INK, weight="bold", fontsize=_HEADING)


def plain(label: str) -> str:
    """Return a label in which no part is read as a formula."""
    return re.sub(r"(?<!\\)\$", r"\\$", label)


def blend(colour: str, strength: float) -> tuple[float, float, float]:
    """Return the mixture of a colour and the pale background of cells, as red, green and blue, 0 … 1.

    Args:
        colour: The colour.
        strength: The share of the colour, 0 … 1.

    Returns:
        Red, green and blue.
    """
    from matplotlib.colors import to_rgb

    red, green, blue = (
        strength * full + (1 - strength) * pale for full, pale in zip(to_rgb(colour), to_rgb(PALE), strict=True)
    )
    return red, green, blue


def name_axes(axes: Axes, title: str, x: str = "", y: str = "") -> None:
    """Write a panel's title and the names of its axes, broken into lines that fit into the panel.

    Args:
        axes: The panel.
        title: The title.
        x: The name of the horizontal axis.
        y: The name of the vertical axis.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None, "axes are part of a figure"
    width, height = figure.get_size_inches()
    if subplot := axes.get_subplotspec():
        rows, columns = subplot.get_gridspec().get_geometry()
        width /= columns
        height /= rows
    axes.set_title(plain(wrapped(title, _WIDTH * width, TITLE)), fontsize=TITLE, color=INK, loc="left")
    axes.set_xlabel(plain(wrapped(x, _WIDTH * width, TEXT)), fontsize=TEXT, color=INK)
    axes.set_ylabel(plain(wrapped(y, _HEIGHT * height, TEXT)), fontsize=TEXT, color=INK)


def finish(axes: Axes, grid: str = "both") -> None:
    """Apply the style that all charts share.

    Args:
        axes: The panel.
        grid: The axis that has grid lines: ``x``, ``y`` or ``both``.
    """
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[:].set_color(LINE)
    axes.tick_params(which="both", colors=INK, labelsize=TEXT, length=3, color=LINE)
    axes.grid(axis=grid, color=PALE, lw=0.8)  # type: ignore[arg-type]
    axes.set_axisbelow(True)


def bare(axes: Axes, size: int = TEXT) -> None:
    """Apply the style of maps made of cells, which have no lines.

    Args:
        axes: The panel.
        size: The size of the labels in points.
    """
    axes.tick_params(length=0, colors=INK, labelsize=size)
    axes.spines[:].set_visible(False)


def legend(figure: Figure, handles: list[Any]) -> None:
    """Draw a legend under a figure, in as many columns as fit.

    Args:
        figure: The figure.
        handles: Labelled artists; no legend is drawn if there are none.
    """
    if not handles:
        return
    for handle in handles:
        handle.set_label(plain(str(handle.get_label())))
    longest = max(len(str(handle.get_label())) for handle in handles) + 6
    fitting = max(1, int(figure.get_figwidth() * _PER_INCH) // longest)
    rows = -(-len(handles) // fitting)
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=-(-len(handles) // rows),
        frameon=False,
        fontsize=TEXT,
        labelcolor=INK,
        handlelength=2.2,
    )
