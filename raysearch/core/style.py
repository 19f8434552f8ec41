"""The look of all figures: inks, a colour and a shape for each searcher, a filling for each calibration."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.backend_bases import FigureCanvasBase
    from matplotlib.figure import Figure

INK, GREY, PALE, LINE, WHITE = "#22303c", "#6b7884", "#eef1f4", "#b8c4cf", "white"
BLUE, ORANGE, GREEN, PINK, AMBER, RED = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#b2182b"
LIGHT_BLUE, LIGHT_ORANGE, LIGHT_GREY, STEEL = "#9cc3de", "#f0b99d", "#c9d1d8", "#9fb0bf"
SMALL, TEXT, TITLE = 8, 9, 10  # points, so that figures can be read when a narrow window shrinks them

#: Distinct for people who see colours differently: Okabe and Ito's without its yellow, then Tol's muted ones.
COLOURS = (
    BLUE, ORANGE, GREEN, PINK, AMBER, "#56B4E9", "#4b4b4b", "#882255", "#999933", "#332288", "#44AA99", "#DDCC77",
    "#AA4499", "#117733", "#661100", "#6699CC",
)  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
SHAPES = ("o", "s", "^", "D", "v", "P", "X", "<", "p", ">", "h", "d", "8", "H", "*")
FILLINGS = ("full", "none", "left", "bottom", "right", "top")
LINES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5)))
SIZES = "viridis_r"  # colour map: from few to many layers
_PER_INCH = 12.5  # characters of a legend, at its size
_HEADING = 12  # points
_WIDTH, _HEIGHT = 0.8, 0.6  # of a panel's share of the figure, what ticks, titles and legends leave
_EM = 0.68  # of the size of letters, how wide one is; bold ones too


def within(values: Iterable[float]) -> tuple[float, float]:
    """Return the ends of an axis for finite values, if any, without those that would flatten the others.

    These lie above the lower three quarters by more than four times their range.
    """
    ordered = sorted({*values})  # of equal values one: two searchers with one mask make no third an outlier
    if not ordered:
        return 0.0, 1.0
    low, upper = ordered[0], ordered[max(min(1, len(ordered) - 1), (3 * (len(ordered) - 1)) // 4)]
    room = (upper - low) or 0.02 * abs(low) or 1.0
    high = max(value for value in ordered if value <= upper + 4 * room)
    pad = 0.08 * ((high - low) or room)
    return low - pad, high + pad


def place(figure: Figure, canvas: type[FigureCanvasBase]) -> None:
    """Put all parts of a figure in their places for good, as ``savefig`` does by drawing it an extra time.

    The resolution and the canvas, which knows how large words are, are those that it is saved with.
    """
    if engine := figure.get_layout_engine():
        canvas(figure)
        engine.execute(figure)
        figure.set_layout_engine(None)


def mark_beyond(axes: Axes, x: float, colour: str) -> None:
    """Mark at the upper edge that a point lies above what the axis shows."""
    axes.axvline(x, lw=0)  # that the axis reaches to it
    axes.text(x, 1.0, "↑", color=colour, fontsize=TITLE, ha="center", transform=axes.get_xaxis_transform())


def short(label: str, most: int = 26) -> str:
    """A label for a figure: long ones lose their middle, and nothing in it is read as a formula."""
    if len(label) > most:
        tail = most // 3
        label = label[: most - tail - 1].rstrip() + "…" + label[-tail:].lstrip()
    return plain(label)


def wrapped(text: str, inches: float, points: float) -> str:
    """Break a text into lines: at spaces, or in a word that is longer than a line, as a path may be.

    Args:
        text: What to break; its own lines stay apart.
        inches: How long a line may be.
        points: The size of the letters.
    """
    most = max(8, int(72 * inches / (_EM * points)))
    return "\n".join(line for part in text.splitlines() for line in textwrap.wrap(part, most))


def name_figure(figure: Figure, title: str) -> None:
    """Write a figure's title, in as many lines as it takes."""
    lines = plain(wrapped(title, 0.96 * figure.get_figwidth(), _HEADING))
    figure.suptitle(lines, color=INK, weight="bold", fontsize=_HEADING)


def plain(label: str) -> str:
    """A label in which nothing is read as a formula."""
    return re.sub(r"(?<!\\)\$", r"\\$", label)


def blend(colour: str, strength: float) -> tuple[float, float, float]:
    """A colour at part of its strength, 0 … 1, on the pale ground of cells."""
    from matplotlib.colors import to_rgb

    red, green, blue = (
        strength * full + (1 - strength) * pale for full, pale in zip(to_rgb(colour), to_rgb(PALE), strict=True)
    )
    return red, green, blue


def name_axes(axes: Axes, title: str, x: str = "", y: str = "") -> None:
    """Write a panel's title and the names of its axes, broken into lines that fit into its share of the figure."""
    figure = axes.get_figure(root=True)
    assert figure is not None, "axes are drawn in one"
    width, height = figure.get_size_inches()
    if place := axes.get_subplotspec():
        rows, columns = place.get_gridspec().get_geometry()
        width, height = width / columns, height / rows
    axes.set_title(plain(wrapped(title, _WIDTH * width, TITLE)), fontsize=TITLE, color=INK, loc="left")
    axes.set_xlabel(plain(wrapped(x, _WIDTH * width, TEXT)), fontsize=TEXT, color=INK)
    axes.set_ylabel(plain(wrapped(y, _HEIGHT * height, TEXT)), fontsize=TEXT, color=INK)


def finish(axes: Axes, grid: str = "both") -> None:
    """The look that all charts share."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[:].set_color(LINE)
    axes.tick_params(which="both", colors=INK, labelsize=TEXT, length=3, color=LINE)
    axes.grid(axis=grid, color=PALE, lw=0.8)  # type: ignore[arg-type]
    axes.set_axisbelow(True)


def bare(axes: Axes, size: int = TEXT) -> None:
    """The look of maps made of cells, without lines of their own; `size` is that of the labels, in points."""
    axes.tick_params(length=0, colors=INK, labelsize=size)
    axes.spines[:].set_visible(False)


def legend(figure: Figure, handles: list[Any]) -> None:
    """A legend under a figure, in as many columns as fit."""
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
