"""Why generated code fails, as stacked bars: a bar for the dense model and for each searcher at each M.

Source: figures 4b and 5b of `On the Limits of Layer Pruning for Generative Reasoning`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from raysearch.core import style
from raysearch.reporting.figures.picture import Picture, grid, pictures
from raysearch.reporting.stats.frame import column_of
from raysearch.reporting.tables import numbers
from raysearch.study.result import StudyResult

_COLOURS = {
    "parenthesis": style.RED,
    "other_syntax": style.AMBER,
    "undefined_name": style.BLUE,
    "time_or_depth": style.PINK,
    "other": style.STEEL,
    "assertion": style.LIGHT_GREY,
}
_Bar = Mapping[str, float]  # percent of the items, by reason
_Task = tuple[str, Mapping[str, _Bar]]  # its title, and its bars by label


def failure_pictures(results: StudyResult, frame: pd.DataFrame) -> list[Picture]:
    """Return for each model why its code fails, a panel a task and calibration; none where no code was assessed."""
    tasks: dict[str, dict[str, str]] = {}
    for metric in results.metrics:
        if metric.group == "failures":
            task, _, reason = metric.name.partition(".failed.")
            tasks.setdefault(task, {})[reason] = metric.name
    titles = {metric.name: metric.title for metric in results.metrics}
    panels: list[tuple[str, _Task]] = []
    for (model, calibration), cells in frame.groupby(["model", "calibration"], observed=True, sort=False):
        for task, reasons in tasks.items():
            bars = _bars(cells, reasons)
            if bars:
                dense = {reason: results.dense[model][name].value for reason, name in reasons.items()}
                title = f"{titles.get(task, task)}, calibrated by {calibration}"
                panels.append((str(model), (title, {"dense": dense, **bars})))
    return pictures("failures", panels, _draw)


def _bars(cells: pd.DataFrame, reasons: Mapping[str, str]) -> dict[str, _Bar]:
    """Return the bars of one task by label, the means over draws and seeds."""
    columns = {column_of(name): reason for reason, name in reasons.items()}
    means = cells.groupby(["remove", "searcher"], observed=True)[list(columns)].mean().dropna().rename(columns=columns)
    return {
        f"M = {remove}, {searcher}": {reason: float(row[reason]) for reason in reasons}
        for (remove, searcher), row in means.iterrows()
    }


def _draw(name: str, model: str, tasks: Sequence[_Task]) -> Picture:
    from matplotlib.patches import Patch

    most = max(len(bars) for _, bars in tasks)
    figure, places = grid(len(tasks), 0.9 + 0.3 * most, 8.6, columns=1, foot=0.8)
    for axes, (title, bars) in zip(places, tasks, strict=True):
        for row, bar in enumerate(bars.values()):
            left = 0.0
            for reason, colour in _COLOURS.items():
                axes.barh(row, bar[reason], left=left, color=colour, height=0.7)
                left += bar[reason]
        axes.set_yticks(range(len(bars)), [style.short(label, 34) for label in bars])
        axes.set_ylim(len(bars) - 0.4, -0.6)
        axes.set_xlim(0, 100)
        style.name_axes(axes, title, "answers that fail (%)")
        style.finish(axes, "x")
    style.legend(figure, [Patch(color=colour, label=_words(reason)) for reason, colour in _COLOURS.items()])
    caption = "The share of all answers that fail for each reason; what is missing to 100 % passes."
    alt = f"Why code of {model} fails: " + "; ".join(
        f"{title}, {label}: "
        + ", ".join(f"{_words(reason)} {numbers.percent(share / 100)}" for reason, share in bar.items())
        for title, bars in tasks
        for label, bar in bars.items()
    )
    return Picture(name, f"Why the code of {model} fails", caption, alt, figure)


def _words(reason: str) -> str:
    return "failed assertion" if reason == "assertion" else reason.replace("_", " ")
