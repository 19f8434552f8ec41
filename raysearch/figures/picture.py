"""A figure with its title and caption, and the bytes of figures as PNG and SVG."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from matplotlib.backend_bases import FigureCanvasBase
    from matplotlib.figure import Figure as Figure  # also for other rooms, which do not import Matplotlib

_Panel = TypeVar("_Panel")


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

    Returns:
        The pictures, in the order in which the models first occur. They are named ``<name>_1``, ``<name>_2``, ….
    """
    by_model: dict[str, list[_Panel]] = {}
    for model, panel in panels:
        by_model.setdefault(model, []).append(panel)
    return [draw(f"{name}_{number}", model, by_model[model]) for number, model in enumerate(by_model, start=1)]


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

    Returns:
        The text of the SVG file.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    buffer = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        _fix_layout(figure, FigureCanvasSVG)
        figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", buffer.getvalue(), flags=re.DOTALL)
    text = re.sub(r'(?<= d=")[^"]+', lambda match: " ".join(match[0].split()), text)
    text = re.sub(r"-?\d+\.\d{3,}(?=[^<>]*>)", lambda match: f"{float(match[0]):.2f}", text)  # 1/100 of a point
    text = re.sub(r">\s*\n\s*<", ">\n<", text)
    return re.sub(r'(<(?:g|image)\b[^<>]*?) id="[^"]+"', r"\1", text)


def fix_layout(figure: Figure, dpi: float) -> None:
    """Set the resolution of a figure that is to be a PNG, and fix its layout.

    Args:
        figure: The figure.
        dpi: The resolution that it is saved with, in dots per inch.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure.dpi = dpi
    _fix_layout(figure, FigureCanvasAgg)


def _fix_layout(figure: Figure, canvas: type[FigureCanvasBase]) -> None:
    """Fix the places of all parts of a figure, for which ``savefig`` would draw it an extra time.

    The figure has the resolution, and the canvas is the one, that it is saved with; the canvas computes the size of
    texts.
    """
    if engine := figure.get_layout_engine():
        canvas(figure)
        engine.execute(figure)
        figure.set_layout_engine(None)
