"""The knee of a search by budget: the cost and the gain of each further layer, pair or half that is removed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raysearch.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from raysearch.figures.picture import Figure


@dataclass(frozen=True)
class KneePanel:
    """One value by the size of the mask.

    Args:
        label: Its name.
        values: The value and its standard error, if known, by the size.
        limit: Its budget; None for none.
        tick_text: Formats the values of the axis; None for the usual format.
    """

    label: str
    values: Mapping[int, tuple[float, float | None]]
    limit: float | None
    tick_text: Callable[[float], str] | None = None


@dataclass(frozen=True)
class Knee:
    """A search by budget.

    Args:
        title: The title of the figure.
        sizes: The sizes of the masks.
        recommended_size: The recommended size.
        recommended_mask: The text of its mask.
        panels: That of the loss, and those of gains as far as they are known.
        plural: What sizes count: ``layers`` …
    """

    title: str
    sizes: Sequence[int]
    recommended_size: int
    recommended_mask: str
    panels: Sequence[KneePanel]
    plural: str = "layers"


def draw_knee(knee: Knee) -> Figure:
    """Draw each value by the size of the mask, with the recommended size marked.

    Dashed lines are the budget, bars are one standard error.
    """
    from matplotlib.figure import Figure

    n_gains = len(knee.panels) - 1
    figure = Figure(figsize=(8.0, 4.0 + 1.3 * n_gains), layout="constrained")
    heights = [2, *[1] * n_gains]
    all_axes = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    style.name_figure(figure, knee.title)
    for axes, panel in zip(all_axes, knee.panels, strict=True):
        _draw(axes, panel, knee)
    all_axes[-1].set_xlabel(f"{knee.plural} removed", color=style.INK)
    return figure


def _draw(axes: Axes, panel: KneePanel, knee: Knee) -> None:
    values = [value for value, _ in panel.values.values()]
    errors = [error or 0.0 for _, error in panel.values.values()]
    axes.errorbar([*panel.values], values, yerr=errors, color=style.BLUE, marker="o", ms=4, lw=1.6, capsize=2)
    if knee.recommended_size in panel.values:
        value, _ = panel.values[knee.recommended_size]
        label = f"recommended: {knee.recommended_mask}"
        axes.plot(knee.recommended_size, value, "o", color=style.ORANGE, ms=9, zorder=3, label=label)
    if panel.limit is not None:
        axes.axhline(panel.limit, color=style.GREY, ls="--", lw=1, label="budget")
    axes.set_ylabel(style.plain(panel.label), color=style.INK)
    axes.set_xticks(knee.sizes)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=style.SMALL, labelcolor=style.INK)
    style.finish(axes, "y")
    if panel.tick_text is not None:
        tick_text = panel.tick_text
        axes.yaxis.set_major_formatter(lambda value, _: tick_text(value))
