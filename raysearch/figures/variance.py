"""The figure of the shares of variance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raysearch.figures import style
from raysearch.figures.panels import grid, name_rows, stack
from raysearch.figures.picture import Picture
from raysearch.text import numbers

_PARTS = {
    "calibration": style.BLUE,
    "draw": style.STEEL,
    "searcher": style.AMBER,
    "interaction": style.PINK,
    "residual": style.LIGHT_GREY,
}
_PART_NAMES = {
    "draw": "draw of the calibration",
    "interaction": "both together (interaction)",
    "residual": "the rest: seeds or noise",
}


@dataclass(frozen=True)
class VarianceBar:
    """The shares of the variance of one quantity.

    Args:
        model: The model.
        quantity: The name of the quantity.
        remove: M.
        shares: The shares by the name of the part, together 1; parts that were not separated are left out.
    """

    model: str
    quantity: str
    remove: int
    shares: Mapping[str, float]


def variance_picture(bars: Sequence[VarianceBar]) -> Picture:
    """Draw the shares of variance as bars."""
    from matplotlib.patches import Patch

    figure, (axes,) = grid(1, 0.36 * len(bars), 8.6, foot=1.3)
    for row, bar in enumerate(bars):
        shares = {part: bar.shares.get(part, 0.0) for part in _PARTS}
        for (part, share), start in zip(shares.items(), stack(axes, row, shares, _PARTS), strict=True):
            if share > 0.06:
                font: dict[str, Any] = {
                    "color": style.WHITE if part == "calibration" else style.INK,
                    "fontsize": style.TEXT,
                }
                axes.text(start + share / 2, row, numbers.percent(share), ha="center", va="center", **font)
    has_several_models = len({bar.model for bar in bars}) > 1
    labels = []
    for bar in bars:
        prefix = f"{style.short(bar.model, 20)}, " if has_several_models else ""
        labels.append(f"{prefix}{style.short(bar.quantity, 40)}, M = {bar.remove}")
    name_rows(axes, labels)
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    style.name_axes(axes, "", "share of the variance (ω²)")
    style.finish(axes, "x")
    used = [part for part in _PARTS if any(part in bar.shares for bar in bars)]
    style.legend(figure, [Patch(color=_PARTS[part], label=_PART_NAMES.get(part, part)) for part in used])
    caption = (
        "The causes of the differences between the checkpoints of a model and M. With one seed, the interaction "
        "cannot be separated from noise, and is part of the rest."
    )
    return Picture("variance", "What results vary with", caption, figure)
