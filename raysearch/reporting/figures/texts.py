"""The figures of generated texts: why code fails, and how well the model still solves small arithmetic problems.

Source: Figures 4 and 5b of "On the Limits of Layer Pruning for Generative Reasoning".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import pandas as pd

from raysearch.core import style
from raysearch.reporting.analysis.frame import Quantity, column_of, quantity_of
from raysearch.reporting.figures.picture import Palette, Picture, grid, name_rows, pictures, stack
from raysearch.studies.result import StudyResult

_COLOURS = {
    "parenthesis": style.RED,
    "other_syntax": style.AMBER,
    "undefined_name": style.BLUE,
    "time_or_depth": style.PINK,
    "other": style.STEEL,
    "assertion": style.LIGHT_GREY,
}
_Task = tuple[str, Mapping[str, Mapping[str, float]]]  # its title, and its bars by label: percent by reason
_Probe = tuple[Quantity, float, pd.Series]  # the dense model's value, then the masks' by searcher, calibration and M


def failure_pictures(results: StudyResult, frame: pd.DataFrame) -> list[Picture]:
    """Return for each model the reasons why its code fails, a panel per task and calibration; none without code.

    Args:
        results: The study.
        frame: Its searches, see `cells_frame`.
    """
    tasks: dict[str, dict[str, str]] = {}
    for metric in results.metrics:
        if metric.group == "failures":
            task, _, reason = metric.name.partition(".failed.")
            tasks.setdefault(task, {})[metric.name] = reason
    titles = {metric.name: metric.title for metric in results.metrics}
    panels: list[tuple[str, _Task]] = []
    for (model, calibration), cells in frame.groupby(["model", "calibration"], observed=True, sort=False):
        for task, reasons in tasks.items():
            columns = {column_of(name): reason for name, reason in reasons.items()}
            means = cells.groupby(["remove", "searcher"], observed=True)[[*columns]].mean().dropna()
            if len(means):
                bars = {"dense": {reason: results.dense[model][name].value for name, reason in reasons.items()}}
                for (remove, searcher), row in means.rename(columns=columns).iterrows():
                    bars[f"M = {remove}, {searcher}"] = row.to_dict()
                panels.append((str(model), (f"{titles.get(task, task)}, calibrated by {calibration}", bars)))
    return pictures("failures", panels, _failure_picture)


def _failure_picture(name: str, model: str, tasks: Sequence[_Task]) -> Picture:
    from matplotlib.patches import Patch

    most_bars = max(len(bars) for _, bars in tasks)
    figure, places = grid(len(tasks), 0.9 + 0.3 * most_bars, 8.6, columns=1, foot=0.8)
    for axes, (title, bars) in zip(places, tasks, strict=True):
        for row, bar in enumerate(bars.values()):
            stack(axes, row, bar, _COLOURS)
        name_rows(axes, [style.short(label, 34) for label in bars])
        axes.set_xlim(0, 100)
        style.name_axes(axes, title, "answers that fail (%)")
        style.finish(axes, "x")
    style.legend(figure, [Patch(color=colour, label=_reason_text(reason)) for reason, colour in _COLOURS.items()])
    caption = "The share of all answers that fail for each reason; what is missing to 100 % passes."
    return Picture(name, f"Why the code of {model} fails", caption, figure)


def _reason_text(reason: str) -> str:
    return "failed assertion" if reason == "assertion" else reason.replace("_", " ")


def probe_pictures(results: StudyResult, frame: pd.DataFrame, palette: Palette) -> list[Picture]:
    """Return for each model the arithmetic probe by M, a line per searcher; none if it was not measured.

    Args:
        results: The study.
        frame: Its searches, see `cells_frame`.
        palette: The looks of its searchers.
    """
    panels: list[tuple[str, _Probe]] = []
    metrics = [metric for metric in results.metrics if metric.group == "probe"]
    for model, cells in frame[frame["comparable"]].groupby("model", observed=True, sort=False):
        for metric in metrics:
            quantity = quantity_of(metric)
            means = cells.groupby(["searcher", "calibration", "remove"], observed=True)[quantity.key].mean().dropna()
            if len(means):
                panels.append((str(model), (quantity, results.dense[str(model)][metric.name].value, means)))
    return pictures("probe", panels, partial(_probe_picture, palette))


def _probe_picture(palette: Palette, name: str, model: str, panels: Sequence[_Probe]) -> Picture:
    figure, places = grid(len(panels), 2.9)
    for axes, (quantity, dense, means) in zip(places, panels, strict=True):
        for (searcher, calibration), values in means.groupby(level=[0, 1], observed=True):
            sizes = [0, *values.index.get_level_values("remove")]
            filling = palette.fillings[calibration]
            axes.plot(sizes, [dense, *values], fillstyle=filling, ms=5, lw=1.4, **palette.line(searcher))
        axes.axhline(dense, color=style.GREY, lw=0.9, ls="--")
        axes.set_xticks([0, *sorted(set(means.index.get_level_values("remove")))])
        style.name_axes(axes, quantity.title, "layers removed (0: dense)", quantity.unit)
        style.finish(axes)
    labels = panels[0][2].index
    style.legend(figure, palette.point_keys(labels.unique("searcher"), list(labels.unique("calibration"))))
    caption = (
        "The first digit of small problems such as (9 + 8) * 2: how often it is the likeliest of the ten, and its mean "
        "log-probability; the mean over draws and seeds. Dashed: the dense model."
    )
    return Picture(name, f"{model}: the arithmetic probe", caption, figure)
