"""Writes the report of a study: one self-contained HTML page, and Markdown, tables and figures as files."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd

from raysearch.core.paths import write_files
from raysearch.figures.picture import png, svg
from raysearch.reporting.analysis.analyse import analyse
from raysearch.reporting.analysis.frame import HELD_OUT_LOSS
from raysearch.reporting.findings import findings
from raysearch.reporting.pictures.palette import study_palette
from raysearch.reporting.sections import sections
from raysearch.reporting.tables.table import Table, as_csv, as_markdown
from raysearch.studies.result import StudyResult
from raysearch.text.escaping import csv_cell, markdown, markdown_code
from raysearch.text.numbers import UNKNOWN, count


def write_report(results: StudyResult, out: Path) -> list[Path]:
    """Write the page, ``report.md``, all numbers as tables, ``tables/*.csv``, ``figures/*.svg`` and ``*.png``.

    ``cells.csv`` has a line for each search. ``items.csv`` has a line for each mask and assessed number: the
    contribution of each item, by which masks are compared. ``dense.csv`` has the assessed numbers of the dense models.

    The page needs no other file and no network. The same results give the same bytes.

    Args:
        results: The results of the study.
        out: The folder of the files; created if it does not exist. Files of the same names are replaced, others stay.

    Returns:
        The files, the page first.

    Raises:
        UserError: The folder cannot be written to.
    """
    analysis = analyse(results)
    parts = sections(analysis)
    pictures = [picture for part in parts for picture in part.pictures]
    drawn = {picture.name: svg(picture.figure, picture.name) for picture in pictures}
    script = f"\n{_text('page.js')}"
    values = {
        "results": results,
        "extent": _extent(analysis.frame),
        "findings": findings(analysis),
        "sections": parts,
        "drawn": drawn,
        "swatches": study_palette(results).colours,
        "facts": {"study": results.study_id, **results.facts},
        "method": [line for line in _text("method.txt").splitlines() if line],
        "style": _text("page.css"),
        "script": script,
        "script_hash": f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}",
    }
    texts = {
        "report.html": _rendered("page.html.j2", values),
        "report.md": _rendered("page.md.j2", values),
        "cells.csv": _csv(_cells(analysis.frame)),
        "items.csv": _csv(_items(results)),
        "dense.csv": _csv(_dense(results)),
        **{f"tables/{table.name}.csv": as_csv(table) for part in parts for table in part.tables},
        **{f"figures/{name}.svg": text for name, text in drawn.items()},
    }
    contents = {name: text.encode() for name, text in texts.items()}
    contents |= {f"figures/{picture.name}.png": png(picture.figure) for picture in pictures}
    return write_files("--out", out, contents)


def _csv(frame: pd.DataFrame) -> str:
    return frame.map(csv_cell).to_csv(index=False, lineterminator="\n")


def _cells(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the searches with layers and losses by draw as JSON, without columns that do not fit in a line."""
    losses = frame["held_out_by_draw"].map(lambda by_draw: json.dumps(by_draw) if by_draw else None)
    return frame.drop(columns=["items", "measure", "source", "space", HELD_OUT_LOSS.error]).assign(
        removed=frame["removed"].map(list), held_out_by_draw=losses
    )


def _items(results: StudyResult) -> pd.DataFrame:
    """Return the contributions of items to each assessed number of a mask, in six digits; see `Outcome.items`."""
    by_mask_and_metric: dict[tuple[str, str, str], str] = {}
    for cell in results.cells:
        if cell.outcome is None:
            continue
        removed = json.dumps(cell.outcome.removed)
        for metric, items in cell.outcome.items.items():
            rounded = [float(f"{item:.6g}") for item in items]
            by_mask_and_metric[cell.model, removed, metric] = json.dumps(rounded)
    rows = [(*labels, items) for labels, items in by_mask_and_metric.items()]
    return pd.DataFrame(rows, columns=["model", "removed", "metric", "items"])


def _dense(results: StudyResult) -> pd.DataFrame:
    """Return the assessed numbers of the dense models, for comparison with ``cells.csv``."""
    rows = [
        (model, name, estimate.value, estimate.error)
        for model, estimates in results.dense.items()
        for name, estimate in estimates.items()
    ]
    return pd.DataFrame(rows, columns=["model", "metric", "value", "error"])


def _rendered(template: str, values: Mapping[str, Any]) -> str:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=template.endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=template.endswith(".md.j2"),
    )
    environment.filters |= {"md": markdown, "code": markdown_code, "table": as_markdown, "view": _view}
    return environment.from_string(_text(template)).render(values)


def _text(name: str) -> str:
    return (files("raysearch.reporting") / name).read_text(encoding="utf-8")


def _extent(frame: pd.DataFrame) -> str:
    """Return the size of the study's grid in one line."""
    sizes = ", ".join(map(str, sorted(frame["remove"].unique())))
    parts = [count(frame[label].nunique(), label) for label in ("model", "calibration", "searcher")]
    parts.append(f"M ∈ {{{sizes}}}" if "," in sizes else f"M = {sizes}")
    if frame["draw"].nunique() > 1:
        parts.append(count(frame["draw"].nunique(), "draw"))
    n_seeds = frame.groupby(["model", "calibration", "searcher", "remove", "draw"], observed=True)["seed"].nunique()
    parts.append(count(max(n_seeds, default=0), "seed"))
    finished = int((frame["state"] == "finished").sum())
    return f"{' × '.join(parts)}: {count(len(frame), 'search', 'searches')}, {finished} finished"


def _view(table: Table) -> dict[str, Any]:
    """Return a table as the page shows it: a line above each group, and no column without information."""
    shown_columns = [index for index in range(len(table.columns)) if not _is_redundant(table, index)]
    heads = [table.columns[index] for index in shown_columns]
    rows: list[dict[str, Any]] = []
    labels: list[str] | None = None
    for number, row in enumerate(table.rows):
        cells = [row[index] for index in shown_columns]
        labels_above = labels
        labels = [cell.text for head, cell in zip(heads, cells, strict=True) if head.groups]
        kind = "plain"
        if table.has_dense and number == 0:
            kind = "dense"
        elif labels_above not in (None, labels):
            kind = "first"
        rows.append({"kind": kind, "cells": list(zip(heads, cells, strict=True))})
    return {"heads": heads, "rows": rows}


def _is_redundant(table: Table, index: int) -> bool:
    """Return whether a column has no information: a label that is always the same, or no number at all."""
    rows = table.rows[1:] if table.has_dense else table.rows
    texts = {row[index].text for row in rows}
    return texts <= {UNKNOWN, ""} or (table.columns[index].may_hide and len(texts) == 1)
