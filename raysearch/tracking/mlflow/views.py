"""Views of searches in MLflow's pages, with their filter, columns and charts chosen: what to open in a browser.

They are tags of an experiment, as MLflow's *Share* button makes them: an address can name no columns and no charts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

#: What an experiment holds as tags, so that its searches can be viewed.
SEARCHES = "tags.`raysearch.kind` = 'search'"
_KEY = "raysearch"  # of the view of all searches of an experiment
_TAG = "mlflow.sharedViewState."
_LOSS = "metrics.`loss/pruned`"
_COLUMNS = (
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


def view_tags(condition: str = SEARCHES, key: str = _KEY) -> dict[str, str]:
    """Return the tag of an experiment that keeps a view, of some name, of the searches that meet a condition."""
    charts = [
        {"uuid": f"raysearch-{place}", "metricSectionId": _SECTION, "deleted": False, "isGenerated": False, **chart}
        for place, chart in enumerate(_CHARTS)
    ]
    section = {"uuid": _SECTION, "name": _SECTION, "display": True, "isReordered": False, "deleted": False}
    state = {
        "searchFilter": condition,
        "orderByKey": _LOSS,  # the lowest first; sorted by a metric, runs are not nested
        "orderByAsc": True,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "selectedColumns": _COLUMNS,
        "columnOrder": _COLUMNS,
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


def study_note(study_id: str, run_id: str, experiment: str) -> str:
    """Return the description of a study's run: links to views of its searches alone."""
    failed = quote(f"{study_condition(run_id)} and attributes.status = 'FAILED'")
    return "\n".join(
        [
            f"A study of raysearch: {study_id}.",
            "",
            f"- [Its searches, the lowest loss first]({view_link(experiment, 'TABLE', study_id)})",
            f"- [Charts of its searches]({view_link(experiment, 'CHART', study_id)})",
            f"- [What failed](#/experiments/{experiment}/runs?searchFilter={failed}&compareRunsMode=TABLE)",
        ]
    )
