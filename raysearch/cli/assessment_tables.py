"""What a person sees of an assessment: a table beside the dense model, and the lines under it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rich.table import Table

from raysearch.assessment.results import Result, RunAssessment
from raysearch.assessment.speed import DECODE
from raysearch.core.estimate import Estimate, Metric
from raysearch.core.formatting import count
from raysearch.core.mask import Mask

_DECIMALS = {"perplexity": 2, "accuracy": 2, "speed": 1}
_MEBIBYTE = 2**20


def assessment_table(title: str, mask: Mask, dense: Mapping[str, Result], pruned: Mapping[str, Result]) -> Table:
    """Every number of a mask beside the dense model's; ± is one standard error, by the choice of items."""
    table = Table(title=title)
    for column in ("", "dense", f"without {mask}", "retention", "over"):
        table.add_column(column, justify="left" if column in ("", "over") else "right")
    group = None
    for name, result in pruned.items():
        if group not in (None, result.metric.group):
            table.add_section()
        group = result.metric.group
        of_dense = _dense_of(result, dense[name])
        retention = "" if result.retention is None else f"{result.retention.value:.3f}"
        if result.retention is not None and result.retention.error:
            retention += f" ± {result.retention.error:.3f}"
        table.add_row(_head(result.metric), *_cells(result, of_dense), retention, result.extent)
    return table


def assessment_tables(done: RunAssessment) -> list[Table | str]:
    """All that is shown of an assessment."""
    title = f"{done.search_id}: {done.model} beside itself without {done.mask} (0-based)"
    return [assessment_table(title, done.mask, done.dense, done.pruned), *_notes(done)]


def _notes(done: RunAssessment) -> list[str]:
    """The lines under the table: what was known, where it is from, and how to check it."""
    computed = done.assessments.computed
    notes = ["All of it answered by the ledger: nothing was computed"]
    if computed:
        notes = [f"{count(computed, 'number')} computed now, the others answered by the ledger"]
    notes.append("± is one standard error, by the choice of windows, documents or items")
    texts = [of["data"] for result in done.pruned.values() if "data" in (of := result.detail)]
    if texts:
        sources = dict.fromkeys(str(one.get("path") or one.get("name") or one["source"]) for one in texts)
        notes.append(f"Texts: {', '.join(sources)}")
    for folder in sorted(set(done.task_files.values())):
        tasks = ",".join(name for name, of in done.task_files.items() if of == folder)
        notes.append(f"To check with lm-eval's own command: lm_eval --include_path {folder} --tasks {tasks} …")
    if DECODE.name in done.pruned:
        detail = done.pruned[DECODE.name].detail
        on = detail["measured_on"]
        alike = "" if on == str(done.mask) else f", without {on}, as layers are alike"
        by = f"{detail['machine']}, {count(detail['threads'], 'thread')}{alike}"
        notes.append(f"Speed: {by}; memory by {detail['memory_source']}")
    return [
        *notes,
        *(f"Warning: the search calibrated on samples of the same text: {name}" for name in done.overlaps),
    ]


def _head(metric: Metric) -> str:
    unit = "MiB" if metric.unit == "bytes" else metric.unit
    arrow = "higher" if metric.higher_is_better else "lower"
    return f"{metric.title} ({unit}, {arrow} is better)"


def _dense_of(result: Result, dense: Result) -> Estimate:
    """The dense model's number; a speed's is that of the same run."""
    return Estimate(result.detail["dense"]) if result.metric.group == "speed" else dense.estimate


def _cells(result: Result, dense: Estimate) -> tuple[str, str]:
    return _cell(dense, result.metric), _cell(result.estimate, result.metric)


def _cell(estimate: Estimate, metric: Metric) -> str:
    """A number with its standard error."""
    if not math.isfinite(estimate.value):
        return "not finite"
    scale = _MEBIBYTE if metric.unit == "bytes" else 1
    decimals = _DECIMALS[metric.group]
    value = estimate.value / scale
    shown = f"{value:,.{decimals}f}" if abs(value) < 1e6 else f"{value:.3g}"
    return shown if estimate.error is None else f"{shown} ± {estimate.error / scale:,.{decimals}f}"
