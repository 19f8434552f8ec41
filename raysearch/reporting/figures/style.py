"""The look of all figures: inks, a colour for each searcher, a marker for each calibration; and figures as bytes."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from raysearch.study.result import StudyResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GREY, PALE, LINE = "#22303c", "#6b7884", "#eef1f4", "#b8c4cf"
BLUE, ORANGE, LIGHT_ORANGE, RED = "#0072B2", "#D55E00", "#f0b99d", "#b2182b"
TEXT, TITLE = 9, 10  # points, so that figures can be read when a narrow window shrinks them

#: Distinct for people who see colours differently: Okabe and Ito's without its yellow, then Tol's muted ones.
COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#4b4b4b", "#882255", "#999933", "#332288",
    "#44AA99", "#DDCC77", "#AA4499", "#117733",
)  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5)))
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


@dataclass(frozen=True)
class Picture:
    """A figure with its title, caption and description.

    Args:
        name: Of its files.
        title: Over it.
        caption: Under it: how to read it.
        alt: Its content in words, for readers who cannot see it.
        figure: The figure.
    """

    name: str
    title: str
    caption: str
    alt: str
    figure: Figure


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


def finish(axes: Axes, grid: str = "both") -> None:
    """The look that all charts share."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[:].set_color(LINE)
    axes.tick_params(which="both", colors=INK, labelsize=TEXT, length=3, color=LINE)
    axes.grid(axis=grid, color=PALE, lw=0.8)  # type: ignore[arg-type]
    axes.set_axisbelow(True)


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


def png(figure: Figure) -> bytes:
    """A figure as PNG; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150, metadata={"Software": None})
    return buffer.getvalue()


def svg(figure: Figure, name: str) -> str:
    """A figure as SVG; the same figure gives the same text.

    Matplotlib names the parts of an SVG at random unless a global setting is changed, so they are named anew: by the
    figure, that several may stand on one page, and by their order.

    Args:
        figure: The figure.
        name: What its parts' names begin with.
    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", buffer.getvalue(), flags=re.DOTALL)
    names = dict.fromkeys(re.findall(r'\bid="([^"]+)"', text))
    new = {old: f"{name}-{number}" for number, old in enumerate(names)}
    text = re.sub(r'\bid="([^"]+)"', lambda found: f'id="{new[found[1]]}"', text)
    text = re.sub(r'href="#([^"]+)"', lambda found: f'href="#{new[found[1]]}"', text)
    return re.sub(r"url\(#([^)]+)\)", lambda found: f"url(#{new[found[1]]})", text)
