"""The look of all figures: inks, a colour for each searcher, a marker for each calibration."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from raysearch.study.result import StudyResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GREY, PALE, LINE, WHITE = "#22303c", "#6b7884", "#eef1f4", "#b8c4cf", "white"
BLUE, ORANGE, GREEN, PINK, AMBER, RED = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#b2182b"
LIGHT_BLUE, LIGHT_ORANGE, LIGHT_GREY, STEEL = "#9cc3de", "#f0b99d", "#c9d1d8", "#9fb0bf"
SMALL, TEXT, TITLE = 8, 9, 10  # points, so that figures can be read when a narrow window shrinks them

#: Distinct for people who see colours differently: Okabe and Ito's without its yellow, then Tol's muted ones.
COLOURS = (
    BLUE, ORANGE, GREEN, PINK, AMBER, "#56B4E9", "#4b4b4b", "#882255", "#999933", "#332288", "#44AA99", "#DDCC77",
    "#AA4499", "#117733",
)  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5)))
SIMILARITIES, SIZES = "Blues", "viridis_r"  # colour maps: from none to all alike; from few to many layers
_PER_INCH = 12.5  # characters of a legend, at its size


@dataclass(frozen=True)
class Palette:
    """The colour and line of each searcher and the marker of each calibration, in every figure.

    Args:
        colours: By searcher.
        lines: By searcher, so that lines differ without their colours too.
        markers: By calibration.
    """

    colours: Mapping[str, str]
    lines: Mapping[str, Any]
    markers: Mapping[str, str]


def palette_of(results: StudyResult) -> Palette:
    """Colours and markers in the study's order, so that they stay where a search is added at the end."""
    searchers = dict.fromkeys(cell.searcher for cell in results.cells)
    calibrations = dict.fromkeys(cell.calibration for cell in results.cells)
    return Palette(
        colours=dict(zip(searchers, itertools.cycle(COLOURS), strict=False)),
        lines=dict(zip(searchers, itertools.cycle(LINES), strict=False)),
        markers=dict(zip(calibrations, itertools.cycle(MARKERS), strict=False)),
    )


def ringed(points: Sequence[tuple[float, float]], size: float = 7.0) -> list[float]:
    """The size of each point's marker: of several at one place the first are larger, so that each shows as a ring."""
    after = [sum(other == point for other in points[place + 1 :]) for place, point in enumerate(points)]
    return [size + 3.5 * number for number in after]


def short(label: str, most: int = 26) -> str:
    """A label for a figure: long ones lose their middle, and nothing in it is read as a formula."""
    if len(label) > most:
        tail = most // 3
        label = label[: most - tail - 1].rstrip() + "…" + label[-tail:].lstrip()
    return label.replace("$", r"\$")


def blend(colour: str, strength: float) -> tuple[float, float, float]:
    """A colour at part of its strength, 0 … 1, on the pale ground of cells."""
    from matplotlib.colors import to_rgb

    red, green, blue = (
        strength * full + (1 - strength) * pale for full, pale in zip(to_rgb(colour), to_rgb(PALE), strict=True)
    )
    return red, green, blue


def name_axes(axes: Axes, title: str, x: str = "", y: str = "") -> None:
    """Write a panel's title and the names of its axes."""
    axes.set_title(title, fontsize=TITLE, color=INK, loc="left")
    axes.set_xlabel(x, fontsize=TEXT, color=INK)
    axes.set_ylabel(y, fontsize=TEXT, color=INK)


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
