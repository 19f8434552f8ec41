"""The figure with which a report opens, of the number by which a study is judged."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import partial

from raysearch.figures.headline import HeadlineNumber, HeadlinePanel, HeadlinePoint, headline_picture
from raysearch.figures.palette import Palette
from raysearch.figures.picture import Picture, pictures
from raysearch.reporting.analysis.analyse import Analysis
from raysearch.reporting.analysis.comparison import Comparison
from raysearch.reporting.analysis.frame import CALIBRATION_LOSS, HELD_OUT_LOSS, by_column


def headline_pictures(analysis: Analysis, palette: Palette) -> list[Picture]:
    """Return for each model a figure of `Analysis.headline`: a panel per M, a row per calibration, points of searchers.

    A loss has a panel for each calibration, too, since their units differ. A model without a mask has no figure.

    Args:
        analysis: The study and its statistics.
        palette: The looks of its searchers.

    Returns:
        The pictures, one for each model.
    """
    quantity = analysis.headline
    number = HeadlineNumber(
        label="loss over the dense model's" if quantity is CALIBRATION_LOSS else quantity.title,
        higher_is_better=quantity.higher_is_better,
        is_ratio=quantity.ratio,
        is_loss=quantity in (CALIBRATION_LOSS, HELD_OUT_LOSS),
        text=quantity.text,
    )
    return pictures("headline", _panels(analysis), partial(headline_picture, number, palette))


def _panels(analysis: Analysis) -> Iterator[tuple[str, HeadlinePanel]]:
    """Yield the panels that have a point, each with its model."""
    quantity = analysis.headline
    comparisons = (*analysis.by_loss, *analysis.by_held_out, *analysis.by_average)
    compared = [comparison for comparison in comparisons if comparison.quantity == quantity]
    if quantity in (CALIBRATION_LOSS, HELD_OUT_LOSS):
        for comparison in compared:
            setting = comparison.setting
            points = _points(comparison)
            if points:
                panel = HeadlinePanel(setting.remove, points, _dense_loss(comparison), setting.calibration)
                yield setting.model, panel
        return
    compared.sort(key=_model_and_size)
    for (model, remove), members in itertools.groupby(compared, _model_and_size):
        points = [point for comparison in members for point in _points(comparison)]
        dense = by_column(analysis.results.dense.get(model, {}), analysis.results).get(quantity.key)
        if points:
            yield model, HeadlinePanel(remove, points, None if dense is None else dense.value, "")


def _model_and_size(comparison: Comparison) -> tuple[str, int]:
    return comparison.setting.model, comparison.setting.remove


def _points(comparison: Comparison) -> list[HeadlinePoint]:
    """Return the searchers that have a finite number; a calibration loss is shown minus the dense model's."""
    over_dense = comparison.quantity == CALIBRATION_LOSS
    points = [
        HeadlinePoint(
            comparison.setting.calibration,
            rival.searcher,
            float(rival.cells["delta"].mean()) if over_dense else rival.mean,
            rival.error,
        )
        for rival in comparison.rivals
    ]
    return [point for point in points if math.isfinite(point.value)]


def _dense_loss(comparison: Comparison) -> float:
    """Return the dense model's place on the axis: 0 for a loss minus its own, else its mean loss over the draws."""
    if comparison.quantity == CALIBRATION_LOSS:
        return 0.0
    return float(comparison.best.cells.drop_duplicates("draw")["dense_loss"].mean())
