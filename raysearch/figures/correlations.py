"""The figure of rank correlations.

Source: Kim et al. 2026 (arXiv 2604.24938), Figure 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from raysearch.figures import style
from raysearch.figures.panels import grid, name_rows
from raysearch.figures.picture import Picture


@dataclass(frozen=True)
class CorrelationPoint:
    """A rank correlation and its interval.

    Args:
        first: The name of the one quantity.
        second: The name of the other quantity.
        model: The model.
        calibration: The calibration.
        remove: M.
        rho: The correlation, -1 … 1.
        interval: Both ends of its interval; None if there is none.
    """

    first: str
    second: str
    model: str
    calibration: str
    remove: int
    rho: float
    interval: tuple[float, float] | None

    @property
    def setting(self) -> tuple[str, str, int]:
        """The labels of its row."""
        return self.model, self.calibration, self.remove


def correlation_picture(points: Sequence[CorrelationPoint]) -> Picture:
    """Draw rank correlations with their intervals: a panel per pair of quantities, a row per setting."""
    pairs = list(dict.fromkeys((point.first, point.second) for point in points))
    settings = list(dict.fromkeys(point.setting for point in points))
    figure, all_axes = grid(len(pairs), 0.3 * len(settings), 10.4, columns=len(pairs), foot=1.6, sharey=True)
    panels: dict[tuple[str, str], Any] = dict(zip(pairs, all_axes, strict=True))
    for point in points:
        axes = panels[point.first, point.second]
        row = settings.index(point.setting)
        if point.interval is not None:
            axes.plot(point.interval, [row, row], color=style.STEEL, lw=2.2, solid_capstyle="round")
        axes.plot(point.rho, row, "o", color=style.INK, ms=6)
    for titles, axes in panels.items():
        axes.axvline(0, color=style.GREY, lw=0.9)
        axes.set_xlim(-1.08, 1.08)
        axes.set_xticks([-1, -0.5, 0, 0.5, 1])
        style.name_axes(axes, "\nand ".join(style.short(title, 40) for title in titles), "Spearman's ρ")
        style.finish(axes, "x")
    has_several_models = len({model for model, _, _ in settings}) > 1
    labels = []
    for model, calibration, remove in settings:
        prefix = f"{style.short(model, 18)}, " if has_several_models else ""
        labels.append(f"{prefix}{style.short(calibration, 26)}, M = {remove}")
    name_rows(all_axes[0], labels)
    caption = (
        "Right of the line, a searcher that is better by the first number tends to be better by the second one, too. "
        "Left of the line, it tends to be worse. The bars are 95 % bootstrap intervals."
    )
    return Picture("correlations", "How rankings go together", caption, figure)
