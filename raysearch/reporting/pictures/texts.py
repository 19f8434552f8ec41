"""The figures of the texts that a study's models generate, and of the arithmetic probe."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pandas as pd

from raysearch.figures.palette import Palette
from raysearch.figures.picture import Picture, pictures
from raysearch.figures.texts import FailurePanel, ProbeLine, ProbePanel, failure_picture, probe_picture
from raysearch.reporting.analysis.frame import column_of, quantity_of
from raysearch.studies.result import StudyResult


def failure_pictures(results: StudyResult, frame: pd.DataFrame) -> list[Picture]:
    """Return for each model the reasons why its code fails, a panel per task and calibration; none without code.

    Args:
        results: The study.
        frame: Its searches, see `cells_frame`.

    Returns:
        The pictures, one for each model.
    """
    return pictures("failures", _failure_panels(results, frame), failure_picture)


def _failure_panels(results: StudyResult, frame: pd.DataFrame) -> Iterator[tuple[str, FailurePanel]]:
    reasons_by_task: dict[str, dict[str, str]] = {}
    for metric in results.metrics:
        if metric.group == "failures":
            task, _, reason = metric.name.partition(".failed.")
            reasons_by_task.setdefault(task, {})[metric.name] = reason
    titles = {metric.name: metric.title for metric in results.metrics}
    for (model, calibration), cells in frame.groupby(["model", "calibration"], observed=True, sort=False):
        for task, reasons in reasons_by_task.items():
            columns = {column_of(name): reason for name, reason in reasons.items()}
            means = cells.groupby(["remove", "searcher"], observed=True)[[*columns]].mean().dropna()
            if len(means):
                bars = {"dense": {reason: results.dense[model][name].value for name, reason in reasons.items()}}
                for (remove, searcher), row in means.rename(columns=columns).iterrows():
                    bars[f"M = {remove}, {searcher}"] = row.to_dict()
                yield str(model), FailurePanel(f"{titles.get(task, task)}, calibrated by {calibration}", bars)


def probe_pictures(results: StudyResult, frame: pd.DataFrame, palette: Palette) -> list[Picture]:
    """Return for each model the arithmetic probe by M, a line per searcher; none if it was not measured.

    Args:
        results: The study.
        frame: Its searches, see `cells_frame`.
        palette: The looks of its searchers.

    Returns:
        The pictures, one for each model.
    """
    return pictures("probe", _probe_panels(results, frame), partial(probe_picture, palette))


def _probe_panels(results: StudyResult, frame: pd.DataFrame) -> Iterator[tuple[str, ProbePanel]]:
    metrics = [metric for metric in results.metrics if metric.group == "probe"]
    for model, cells in frame[frame["comparable"]].groupby("model", observed=True, sort=False):
        for metric in metrics:
            quantity = quantity_of(metric)
            means = cells.groupby(["searcher", "calibration", "remove"], observed=True)[quantity.key].mean().dropna()
            lines = [
                ProbeLine(searcher, calibration, values.droplevel([0, 1]).to_dict())
                for (searcher, calibration), values in means.groupby(level=[0, 1], observed=True)
            ]
            if lines:
                dense = results.dense[str(model)][metric.name].value
                yield str(model), ProbePanel(quantity.title, quantity.unit, dense, lines, results.plural)
