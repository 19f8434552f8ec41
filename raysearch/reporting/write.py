"""Writes a study's report: a page, Markdown, tables and figures."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from raysearch.core.escaping import csv_cell
from raysearch.errors import UserError
from raysearch.reporting.figures.picture import png, svg
from raysearch.reporting.findings import findings
from raysearch.reporting.page import html_page, markdown_page
from raysearch.reporting.sections import sections
from raysearch.reporting.stats.analysis import analyse
from raysearch.reporting.tables.table import as_csv
from raysearch.study.result import StudyResult


def write_report(results: StudyResult, out: Path) -> list[Path]:
    """Write the page, ``report.md``, ``cells.csv``, ``dense.csv``, ``tables/*.csv``, ``figures/*.svg`` and ``*.png``.

    The page needs no other file and no network. The same results give the same bytes.

    Args:
        results: What the study found.
        out: Where; made if it does not exist. Files of the same names are replaced, others stay.

    Returns:
        The files, the page first.

    Raises:
        UserError: The folder cannot be written to.
    """
    analysis = analyse(results)
    found, parts = findings(analysis), sections(analysis)
    pictures = [picture for part in parts for picture in part.pictures]
    drawn = {picture.name: svg(picture.figure, picture.name) for picture in pictures}
    texts = {
        "report.html": html_page(analysis, found, parts, drawn),
        "report.md": markdown_page(analysis, found, parts),
        "cells.csv": _csv(_cells(analysis.frame)),
        "dense.csv": _csv(_dense(results)),
        **{f"tables/{table.name}.csv": as_csv(table) for part in parts for table in part.tables},
        **{f"figures/{name}.svg": text for name, text in drawn.items()},
    }
    files = {name: text.encode() for name, text in texts.items()}
    files |= {f"figures/{picture.name}.png": png(picture.figure) for picture in pictures}
    try:
        for name, content in files.items():
            path = out / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    except OSError as error:
        raise UserError(f"--out={out} cannot be written ({error.strerror}); name another folder") from error
    return [out / name for name in files]


def _csv(frame: pd.DataFrame) -> str:
    return frame.map(csv_cell).to_csv(index=False, lineterminator="\n")


def _cells(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the searches with layers and losses by draw as JSON, and without the contributions of items."""
    losses = frame["held_out_by_draw"].map(lambda of: json.dumps(of) if of else None)
    return frame.drop(columns="items").assign(removed=frame["removed"].map(list), held_out_by_draw=losses)


def _dense(results: StudyResult) -> pd.DataFrame:
    """Return what the dense models were assessed at, which `cells.csv` is compared with."""
    rows = [
        (model, name, one.value, one.error) for model, found in results.dense.items() for name, one in found.items()
    ]
    return pd.DataFrame(rows, columns=["model", "metric", "value", "error"])
