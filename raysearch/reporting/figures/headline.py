"""The figure on top: every checkpoint of a study, so that calibrations and searchers can be compared at a glance.

Source: Kim et al. 2026 (arXiv 2604.24938), version 1, Figure 2: the variance between methods, by calibration.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import pandas as pd

from raysearch.core import style
from raysearch.reporting.figures.palette import Palette
from raysearch.reporting.figures.picture import Picture, grid, pictures
from raysearch.reporting.figures.quality import log_scale
from raysearch.reporting.stats.analysis import Analysis
from raysearch.reporting.stats.frame import CALIBRATION_LOSS, Quantity, mean_of, panels
from raysearch.reporting.tables import numbers

_SPREAD = 0.62  # of a calibration's row, over which its searchers are laid out
_RUINED = 300  # times the lowest perplexity: what is higher is off the scale
_Panel = tuple[int, pd.DataFrame]  # M, and a row a searcher of a calibration


def headline_pictures(analysis: Analysis, palette: Palette) -> list[Picture]:
    """For each model a row of points a calibration, a point a searcher, a panel an M; none without a mask.

    They show the first average that checkpoints were assessed by. Where there is none they show the loss over the
    dense model's, which can be compared within a row alone.
    """
    quantity = analysis.averages[0] if analysis.averages else CALIBRATION_LOSS
    key = "delta" if quantity is CALIBRATION_LOSS else quantity.key
    found = []
    for panel, cells in panels(analysis.frame):
        found_by = cells.groupby(["calibration", "searcher"], observed=True)[key]
        means = found_by.agg(partial(mean_of, quantity)).rename("value").dropna()
        if len(means):
            found.append((panel.model, (panel.remove, means.reset_index())))
    return pictures("headline", found, partial(_headline, quantity, palette))


def _headline(quantity: Quantity, palette: Palette, name: str, model: str, found: Sequence[_Panel]) -> Picture:
    calibrations = list(dict.fromkeys(one for _, means in found for one in means["calibration"]))
    searchers = list(dict.fromkeys(one for _, means in found for one in means["searcher"]))
    what = "loss over the dense model's" if quantity is CALIBRATION_LOSS else quantity.title
    figure, places = grid(len(found), 0.75 + 0.5 * len(calibrations), sharey=True)
    for axes, (remove, means) in zip(places, found, strict=True):
        if quantity.higher_is_better:  # shares of right answers, of which none flattens the others
            low, high = style.within(means["value"], reach=math.inf)
        elif quantity.ratio:
            least = means["value"].min()
            low, high = least / 1.3, min(means["value"].max(), _RUINED * least) * 1.3
        else:
            low, high = style.within(means["value"])
        for one in means.itertuples():
            step = searchers.index(one.searcher) / max(1, len(searchers) - 1) - 0.5
            row = calibrations.index(one.calibration) + _SPREAD * step
            look = {**palette.point(one.searcher), "ms": 6, "mew": 1.2}
            if one.value > high:
                edge: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "clip_on": False, "fillstyle": "none"}
                axes.plot(1.0, row, **look, **edge)
            else:
                axes.plot(one.value, row, **look)
        for row, calibration in enumerate(calibrations):
            values = means.loc[means["calibration"] == calibration, "value"]
            if len(values):
                middle = values.median()
                axes.plot([middle, middle], [row - 0.42, row + 0.42], color=style.INK, lw=1.2, zorder=0)
            if row:
                axes.axhline(row - 0.5, color=style.LINE, lw=0.8)
        axes.set_yticks(range(len(calibrations)), [style.short(one, 30) for one in calibrations])
        axes.set_ylim(len(calibrations) - 0.5, -0.5)
        better = "right" if quantity.higher_is_better else "left"
        style.name_axes(axes, f"M = {remove}", f"{what}{' (log scale)' if quantity.ratio else ''}; better: {better}")
        axes.set_xlim(low, high)
        if quantity.ratio:
            log_scale(axes)
        style.finish(axes, "x")
    style.legend(figure, palette.point_keys(searchers))
    caption = (
        "A row a calibration, a point a searcher (the mean over draws and seeds), a bar the median of a row. Rows "
        "apart: the calibration matters; points of a row apart: the searcher matters. Hollow, at the right edge: off "
        "the scale, which is chosen for the others."
    )
    if quantity is CALIBRATION_LOSS:
        caption += " Losses of two calibrations have different units and are compared within a row alone."
    alt = f"{numbers.capital(what)}: " + "; ".join(
        f"M = {remove}, {one.calibration}, {one.searcher}: {numbers.three(one.value)}"
        for remove, means in found
        for one in means.itertuples()
    )
    title = "what came of each calibration and searcher"
    return Picture(name, f"{model}: {title}", caption, alt, figure)
