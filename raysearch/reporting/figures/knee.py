"""The knee of a search by budget: the cost and the gain of each further layer, and the last one within the budget."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from raysearch.core import style
from raysearch.core.paths import as_name, write_files
from raysearch.reporting.figures.picture import png
from raysearch.searching.recommendation import Recommendation
from raysearch.text.numbers import size as size_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def write_knee(recommendation: Recommendation, store: Path) -> Path:
    """Draw `knee` to ``reports/<search>/knee.png`` in a store, and return the file.

    Args:
        recommendation: The recommendation of a search by budget.
        store: The folder of the store.

    Raises:
        UserError: The file cannot be written.
    """
    name = f"reports/{as_name('SEARCH', recommendation.search_id)}/knee.png"
    (file,) = write_files("store", store, {name: png(knee(recommendation))})
    return file


def knee(recommendation: Recommendation) -> Figure:
    """Draw the loss over the dense model's by number of layers, and speed and memory if they were measured.

    The recommended number is marked. Dashed lines are the budget, bars are one standard error.
    """
    from matplotlib.figure import Figure

    speeds = {size.n_removed: size.speed for size in recommendation.sizes if size.speed is not None}
    heights = [2, 1, 1] if speeds else [1]
    figure = Figure(figsize=(8.0, 6.6 if speeds else 4.0), layout="constrained")
    panels = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    budget = recommendation.budget
    style.name_figure(figure, f"{recommendation.model}: {recommendation.n_removed} layers can go by {budget}")
    losses = {size.n_removed: (size.delta, size.delta_error) for size in recommendation.sizes}
    _draw(panels[0], recommendation, f"loss over dense\n({recommendation.measure.unit})", losses, budget.loss)
    if speeds:
        decoding = {size: (speed.speedup, speed.error) for size, speed in speeds.items()}
        _draw(panels[1], recommendation, "decoding speed\n(× dense)", decoding, budget.speedup)
        is_of_bytes = budget.is_of_bytes
        memory = {size: (speed.memory_bytes if is_of_bytes else speed.memory, None) for size, speed in speeds.items()}
        name = "peak memory" if is_of_bytes else "peak memory\n(change)"
        _draw(panels[2], recommendation, name, memory, budget.memory)
        panels[2].yaxis.set_major_formatter(lambda y, _: size_text(y) if is_of_bytes else f"{y:+.0%}")
    panels[-1].set_xlabel("layers removed", color=style.INK)
    return figure


def _draw(
    axes: Axes,
    recommendation: Recommendation,
    name: str,
    points: Mapping[int, tuple[float, float | None]],
    limit: float | None,
) -> None:
    """Draw values and their errors by number of layers."""
    values = [value for value, _ in points.values()]
    errors = [error or 0.0 for _, error in points.values()]
    axes.errorbar([*points], values, yerr=errors, color=style.BLUE, marker="o", ms=4, lw=1.6, capsize=2)
    if recommendation.n_removed in points:
        value, _ = points[recommendation.n_removed]
        label = f"recommended: {recommendation.removed}"
        axes.plot(recommendation.n_removed, value, "o", color=style.ORANGE, ms=9, zorder=3, label=label)
    if limit is not None:
        axes.axhline(limit, color=style.GREY, ls="--", lw=1, label="budget")
    axes.set_ylabel(style.plain(name), color=style.INK)
    axes.set_xticks([size.n_removed for size in recommendation.sizes])
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=style.SMALL, labelcolor=style.INK)
    style.finish(axes, "y")
