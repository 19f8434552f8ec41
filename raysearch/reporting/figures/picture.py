"""Figures with their words, several panels in one, and figures as bytes."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from raysearch.core import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_Panel = TypeVar("_Panel")
_UNTOLD = ("Date", "Creator", "Format", "Type")  # of a figure's metadata


@dataclass(frozen=True)
class Picture:
    """A figure with its title, caption and description.

    Args:
        name: Of its files.
        caption: Under it: how to read it.
        alt: Its content in words, for readers who cannot see it.
    """

    name: str
    title: str
    caption: str
    alt: str
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
        figure.savefig(buffer, format="svg", metadata=dict.fromkeys(_UNTOLD))
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", buffer.getvalue(), flags=re.DOTALL)
    text = re.sub(r'(?<= d=")[^"]+', lambda found: " ".join(found[0].split()), text)
    text = re.sub(r"-?\d+\.\d{3,}(?=[^<>]*>)", lambda found: f"{float(found[0]):.2f}", text)  # 1/100 of a point
    text = re.sub(r">\s*\n\s*<", ">\n<", text)
    return re.sub(r'(<(?:g|image)\b[^<>]*?) id="[^"]+"', r"\1", text)
