"""How the loss on held-out rows came down with the tokens of a training."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

from raysearch.core import style
from raysearch.reporting.figures.palette import Palette
from raysearch.reporting.figures.picture import Picture, grid, pictures
from raysearch.reporting.tables import numbers
from raysearch.study.result import RecoveredMask, StudyResult

_Panel = tuple[str, list[RecoveredMask]]  # a way of training, and the masks that were trained so


def recovery_pictures(results: StudyResult, palette: Palette) -> list[Picture]:
    """Return for each model the loss by tokens, a panel a way of training, a line a mask."""
    panels: list[tuple[str, _Panel]] = []
    known = [one for one in results.recovered if one.record.training.held_out]
    for model, way in dict.fromkeys((one.model, one.record.way) for one in known):
        panels.append((model, (way, [one for one in known if (one.model, one.record.way) == (model, way)])))
    return pictures("recovery", panels, partial(_draw, palette))


def _draw(palette: Palette, name: str, model: str, panels: Sequence[_Panel]) -> Picture:
    from matplotlib.lines import Line2D

    figure, places = grid(len(panels), 2.9)
    looks: dict[str, dict[str, Any]] = {}
    markers = itertools.cycle(style.MARKERS)
    for axes, (way, masks) in zip(places, panels, strict=True):
        for one in masks:
            label = f"{one.searchers}, M = {one.remove}" if one.remove else "dense"
            first = one.found_by[0]
            look = looks.setdefault(
                label,
                {"color": palette.colours.get(first, style.GREY), "ls": palette.lines.get(first, "--")}
                | {"marker": next(markers), "ms": 4, "lw": 1.4},
            )
            axes.plot(*zip(*one.record.training.held_out, strict=True), **look)
        style.name_axes(axes, style.short(way, 48), "tokens", "held-out loss (nats per token)")
        style.finish(axes)
    style.legend(figure, [Line2D([], [], label=label, **look) for label, look in looks.items()])
    caption = (
        "The loss on held-out rows by the tokens that a model was trained on, a panel a way of training. Losses of "
        "different ways are of different rows, or distances from the dense model, and do not compare."
    )
    alt = "Lines: " + "; ".join(
        f"{way}, {one.searchers}, M = {one.remove}: {numbers.loss(losses[0][1])} to {numbers.loss(losses[-1][1])} "
        f"after {losses[-1][0]:,} tokens"
        for way, masks in panels
        for one in masks
        for losses in [one.record.training.held_out]
    )
    return Picture(name, f"{model}: loss by tokens of training", caption, alt, figure)
