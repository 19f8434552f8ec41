"""Views of searches in MLflow's pages, with their filter, columns and charts chosen: what to open in a browser.

They are tags of an experiment, as MLflow's *Share* button makes them: an address can name no columns and no charts.
Losses of two objectives have different units, so each objective has a view of its own, the lowest loss first. The view
of all searches puts those of one objective together.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from raysearch.tracking.mlflow.records import key_of

if TYPE_CHECKING:  # heavy
    from mlflow.entities import Run

#: What an experiment holds as tags, so that its searches can be viewed.
SEARCHES = "tags.`raysearch.kind` = 'search'"
_KEY = "raysearch"  # of the view of all searches of an experiment
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
    """Return the tags of an experiment that keep views of the searches that meet a condition.

    Args:
        condition: Which runs are shown.
        key: The name of the view of all of them; those of an objective have names of their own, see `objective_key`.
        runs: The runs that are there, whose objectives get a view and whose assessed numbers get a column.
    """
    runs = list(runs)
    assessed = sorted(
        {name for run in runs for name in run.data.metrics if name.startswith("assess/") and name.endswith("/pruned")}
    )
    columns = (*_COLUMNS, *(f"metrics.`{name}`" for name in assessed))
    tags = _view(condition, key, columns, _OBJECTIVE)
    for objective in objectives_of(runs):
        of_objective = f"{condition} and {_OBJECTIVE} = '{objective}'"
        tags |= _view(of_objective, objective_key(objective, key), columns, _LOSS)
    return tags


def objectives_of(runs: Iterable[Run]) -> list[str]:
    """Return the objectives of some searches by name."""
    return sorted({run.data.tags[_TAG_OF_OBJECTIVE] for run in runs if _TAG_OF_OBJECTIVE in run.data.tags})


def objective_key(objective: str, key: str = _KEY) -> str:
    """Return the name of the view of one objective, beside the view of all searches."""
    return key_of(f"{key}-{objective}")


def _view(condition: str, key: str, columns: Sequence[str], order: str) -> dict[str, str]:
    charts = [
        {"uuid": f"raysearch-{place}", "metricSectionId": _SECTION, "deleted": False, "isGenerated": False, **chart}
        for place, chart in enumerate(_CHARTS)
    ]
    section = {"uuid": _SECTION, "name": _SECTION, "display": True, "isReordered": False, "deleted": False}
    state = {
        "searchFilter": condition,
        "orderByKey": order,  # the lowest first; sorted by a metric or a tag, runs are not nested
        "orderByAsc": True,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "selectedColumns": columns,
        "columnOrder": columns,
        "compareRunCharts": charts,
        "compareRunSections": [{**section, "isGenerated": False}],
        "runsHiddenMode": "FIRST_20_RUNS",
        "isAccordionReordered": True,  # else MLflow sorts sections by name
    }
    return {_TAG + key: json.dumps(state)}


def view_link(experiment: str, mode: str, key: str = _KEY) -> str:
    """Return the address of a kept view, from MLflow's own on; the mode is ``TABLE`` or ``CHART``."""
    return f"#/experiments/{experiment}/runs?viewStateShareKey={quote(key)}&compareRunsMode={mode}"


def study_condition(run_id: str) -> str:
    """Return which runs are the searches of a study, by MLflow's id of its run."""
    return f"{SEARCHES} and tags.`mlflow.parentRunId` = '{run_id}'"


def study_note(study_id: str, run_id: str, experiment: str, objectives: Sequence[str] = ()) -> str:
    """Return the description of a study's run: links to views of its searches alone, and of each objective."""
    by_objective = [
        line
        for objective in objectives
        for link in [partial(view_link, experiment, key=objective_key(objective, study_id))]
        for line in (
            f"- [{objective}: the lowest loss first]({link('TABLE')})",
            f"- [{objective}: charts]({link('CHART')})",
        )
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
