"""The knee of a search by budget: what each layer more costs and gains, and where it stops to be worth it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from raysearch.core import style
from raysearch.core.formatting import size as size_text
from raysearch.core.paths import as_name, write_files
from raysearch.reporting.figures.picture import png
from raysearch.search.recommendation import Recommendation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def write_knee(found: Recommendation, store: Path) -> Path:
    """Draw `knee` to ``reports/<search>/knee.png`` in a store, and return the file.

    Raises:
        UserError: It cannot be written.
    """
    name = f"reports/{as_name('SEARCH', found.search_id)}/knee.png"
    (file,) = write_files("store", store, {name: png(knee(found))})
    return file


def knee(found: Recommendation) -> Figure:
    """Draw the loss over the dense model's by number of layers, and speed and memory where they were measured.

    The recommended number is marked. Dashed lines are the budget, bars are one standard error.
    """
    from matplotlib.figure import Figure

    gains = any(size.speedup is not None for size in found.sizes)
    heights = [2, 1, 1] if gains else [1]
    figure = Figure(figsize=(8.0, 6.6 if gains else 4.0), layout="constrained")
    panels = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    title = style.plain(f"{found.model}: {found.n_removed} layers can go by {found.budget}")
    figure.suptitle(title, color=style.INK, weight="bold")
    _draw(panels[0], found, f"loss over dense\n({found.measure.unit})", "delta", "delta_error", found.budget.loss)
    if gains:
        _draw(panels[1], found, "decoding speed\n(× dense)", "speedup", "speedup_error", found.budget.speedup)
        is_of_bytes = found.budget.is_of_bytes
        name, value = ("peak memory", "memory_bytes") if is_of_bytes else ("peak memory\n(change)", "memory")
        _draw(panels[2], found, name, value, None, found.budget.memory)
        panels[2].yaxis.set_major_formatter(lambda y, _: size_text(y) if is_of_bytes else f"{y:+.0%}")
    panels[-1].set_xlabel("layers removed", color=style.INK)
    return figure


def _draw(axes: Axes, found: Recommendation, name: str, value: str, error: str | None, limit: float | None) -> None:
    known = [size for size in found.sizes if getattr(size, value) is not None]
    errors = [(getattr(size, error) if error else None) or 0.0 for size in known]
    points = [size.n_removed for size in known], [getattr(size, value) for size in known]
    axes.errorbar(*points, yerr=errors, color=style.BLUE, marker="o", ms=4, lw=1.6, capsize=2)
    for size in known:
        if size.n_removed == found.n_removed:
            label = f"recommended: {size.mask}"
            axes.plot(size.n_removed, getattr(size, value), "o", color=style.ORANGE, ms=9, zorder=3, label=label)
    if limit is not None:
        axes.axhline(limit, color=style.GREY, ls="--", lw=1, label="budget")
    axes.set_ylabel(style.plain(name), color=style.INK)
    axes.set_xticks([size.n_removed for size in found.sizes])
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=style.SMALL, labelcolor=style.INK)
    style.finish(axes, "y")
