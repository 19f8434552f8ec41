"""Views of searches in MLflow's pages: a filter, columns and charts, which an address opens in a browser.

A view is a tag of an experiment, as MLflow's *Share* button writes it, since an address cannot contain columns and
charts. Losses of different objectives have different units, so each objective has its own view, with the lowest loss
first. The view of all searches is sorted by objective.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from raysearch.tracking.mlflow.run_fields import key_of

if TYPE_CHECKING:  # heavy
    from mlflow.entities import Run

#: The condition, in MLflow's syntax, that runs of searches meet.
SEARCHES = "tags.`raysearch.kind` = 'search'"
_KEY = "raysearch"  # the name of the view of all searches of an experiment
_TAG = "mlflow.sharedViewState."
_LOSS = "metrics.`loss/pruned`"
_TAG_OF_OBJECTIVE = "raysearch.objective"
_OBJECTIVE = f"tags.`{_TAG_OF_OBJECTIVE}`"
_COLUMNS = (
    _OBJECTIVE,
    "tags.`raysearch.data`",
    "tags.`raysearch.study.calibration`",
    "tags.`raysearch.study.draw`",
    "tags.`raysearch.searcher`",
    "params.`n_remove`",
    "params.`removed`",
    _LOSS,
    "metrics.`loss/delta`",
    "metrics.`loss/delta_se`",
    *(f"metrics.`{readout}/pruned`" for readout in ("perplexity", "accuracy", "margin", "cosine")),
)
_SECTION = "raysearch"
_LINE = {"type": "LINE", "lineSmoothness": 0, "useGlobalLineSmoothing": False}
_CHARTS: Sequence[Mapping[str, Any]] = (
    {"type": "PARALLEL", "selectedParams": ["choices.searcher", "n_remove"], "selectedMetrics": ["loss/pruned"]},
    {
        "type": "SCATTER",
        "xaxis": {"key": "layer_forwards/alone", "type": "METRIC"},
        "yaxis": {"key": "loss/pruned", "type": "METRIC"},
    },
    {**_LINE, "metricKey": "progress/best_loss", "selectedMetricKeys": ["progress/best_loss"]},
    {**_LINE, "metricKey": "path/loss", "selectedMetricKeys": ["path/loss"]},
)


def view_tags(condition: str = SEARCHES, key: str = _KEY, runs: Iterable[Run] = ()) -> dict[str, str]:
    """Return the tags of an experiment that contain views of the searches that meet a condition.

    Args:
        condition: Which runs are shown.
        key: The name of the view of all these searches; for the views of one objective see `objective_key`.
        runs: The existing runs; their objectives get a view each, and their assessed numbers a column each.

    Returns:
        The tags, by their names.
    """
    runs = list(runs)
    assessed = sorted(
        {name for run in runs for name in run.data.metrics if name.startswith("assess/") and name.endswith("/pruned")}
    )
    columns = (*_COLUMNS, *(f"metrics.`{name}`" for name in assessed))
    tags = _view(condition, key, columns, _OBJECTIVE)
    for objective in objectives_of(runs):
        objective_condition = f"{condition} and {_OBJECTIVE} = '{objective}'"
        tags |= _view(objective_condition, objective_key(objective, key), columns, _LOSS)
    return tags


def objectives_of(runs: Iterable[Run]) -> list[str]:
    """Return the names of the objectives of searches, in alphabetical order."""
    return sorted({run.data.tags[_TAG_OF_OBJECTIVE] for run in runs if _TAG_OF_OBJECTIVE in run.data.tags})


def objective_key(objective: str, key: str = _KEY) -> str:
    """Return the name of the view of one objective.

    Args:
        objective: The name of the objective.
        key: The name of the view of all searches.

    Returns:
        The name, in which only characters occur that MLflow allows.
    """
    return key_of(f"{key}-{objective}")


def _view(condition: str, key: str, columns: Sequence[str], order: str) -> dict[str, str]:
    charts = [
        {"uuid": f"raysearch-{index}", "metricSectionId": _SECTION, "deleted": False, "isGenerated": False, **chart}
        for index, chart in enumerate(_CHARTS)
    ]
    section = {"uuid": _SECTION, "name": _SECTION, "display": True, "isReordered": False, "deleted": False}
    state = {
        "searchFilter": condition,
        "orderByKey": order,  # if runs are sorted by a metric or a tag, MLflow does not nest them
        "orderByAsc": True,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "selectedColumns": columns,
        "columnOrder": columns,
        "compareRunCharts": charts,
        "compareRunSections": [{**section, "isGenerated": False}],
        "runsHiddenMode": "FIRST_20_RUNS",
        "isAccordionReordered": True,  # otherwise MLflow sorts sections by name
    }
    return {_TAG + key: json.dumps(state)}


def view_link(experiment: str, mode: str, key: str = _KEY) -> str:
    """Return the part of a view's address that follows the address of MLflow.

    Args:
        experiment: The id of the experiment.
        mode: ``TABLE`` or ``CHART``.
        key: The name of the view.

    Returns:
        The part of the address, which begins with ``#``.
    """
    return f"#/experiments/{experiment}/runs?viewStateShareKey={quote(key)}&compareRunsMode={mode}"


def study_condition(run_id: str) -> str:
    """Return the condition, in MLflow's syntax, that the runs of a study's searches meet; `run_id` is the study's."""
    return f"{SEARCHES} and tags.`mlflow.parentRunId` = '{run_id}'"


def study_note(study_id: str, run_id: str, experiment: str, objectives: Sequence[str] = ()) -> str:
    """Return the description of a study's run: links to views of its searches, and of those of each objective.

    Args:
        study_id: The id of the study, which is the name of the view of its searches.
        run_id: The id of the study's run.
        experiment: The id of the experiment.
        objectives: The names of the objectives.

    Returns:
        The text, in Markdown.
    """
    by_objective = []
    for objective in objectives:
        key = objective_key(objective, study_id)
        by_objective += [
            f"- [{objective}: the lowest loss first]({view_link(experiment, 'TABLE', key)})",
            f"- [{objective}: charts]({view_link(experiment, 'CHART', key)})",
        ]
    failed = quote(f"{study_condition(run_id)} and attributes.status = 'FAILED'")
    return "\n".join(
        [
            f"A study of raysearch: {study_id}.",
            "",
            f"- [All of its searches]({view_link(experiment, 'TABLE', study_id)})",
            f"- [Charts of its searches]({view_link(experiment, 'CHART', study_id)})",
            *by_objective,
            f"- [What failed](#/experiments/{experiment}/runs?searchFilter={failed}&compareRunsMode=TABLE)",
        ]
    )
