"""What masks still know of arithmetic, by the number of layers removed.

Source: figure 4a of `On the Limits of Layer Pruning for Generative Reasoning`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pandas as pd

from raysearch.core import style
from raysearch.reporting.figures.palette import Palette
from raysearch.reporting.figures.picture import Picture, grid, pictures
from raysearch.reporting.stats.frame import Quantity, quantity_of
from raysearch.reporting.tables import numbers
from raysearch.study.result import StudyResult

_Panel = tuple[Quantity, float, pd.Series]  # what, the dense model's, and the masks' by searcher, calibration and M


def probe_pictures(results: StudyResult, frame: pd.DataFrame, palette: Palette) -> list[Picture]:
    """Return for each model the arithmetic probe by M, a line a searcher; none where it was not asked."""
    panels: list[tuple[str, _Panel]] = []
    asked = [metric for metric in results.metrics if metric.group == "probe"]
    for model, cells in frame[frame["comparable"]].groupby("model", observed=True, sort=False):
        for metric in asked:
            quantity = quantity_of(metric)
            means = cells.groupby(["searcher", "calibration", "remove"], observed=True)[quantity.key].mean().dropna()
            if len(means):
                panels.append((str(model), (quantity, results.dense[str(model)][metric.name].value, means)))
    return pictures("probe", panels, partial(_draw, palette))


def _draw(palette: Palette, name: str, model: str, panels: Sequence[_Panel]) -> Picture:
    figure, places = grid(len(panels), 2.9)
    for axes, (quantity, dense, means) in zip(places, panels, strict=True):
        for (searcher, calibration), values in means.groupby(level=[0, 1], observed=True):
            sizes = values.index.get_level_values("remove")
            axes.plot(
                [0, *sizes],
                [dense, *values],
                fillstyle=palette.fillings[calibration],
                ms=5,
                lw=1.4,
                **palette.line(searcher),
            )
        axes.axhline(dense, color=style.GREY, lw=0.9, ls="--")
        axes.set_xticks([0, *sorted(set(means.index.get_level_values("remove")))])
        style.name_axes(axes, quantity.title, "layers removed (0: dense)", quantity.unit)
        style.finish(axes)
    every = panels[0][2].index
    searchers, calibrations = (
        list(dict.fromkeys(every.get_level_values(level))) for level in ("searcher", "calibration")
    )
    style.legend(figure, palette.point_keys(searchers, calibrations))
    caption = (
        "The first digit of small problems such as (9 + 8) * 2: how often it is the likeliest of the ten, and its mean "
        "log-probability; the mean over draws and seeds. Dashed: the dense model."
    )
    alt = "Lines: " + "; ".join(
        f"{quantity.title}, {searcher}, {calibration}, M = {remove}: {numbers.three(value)}"
        for quantity, _, means in panels
        for (searcher, calibration, remove), value in means.items()
    )
    return Picture(name, f"{model}: the arithmetic probe", caption, alt, figure)
