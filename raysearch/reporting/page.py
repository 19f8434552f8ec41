"""The report as one HTML page that needs nothing but itself, and as Markdown beside its figures."""

from __future__ import annotations

import itertools
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import pandas as pd

from raysearch.core.escaping import markdown
from raysearch.core.formatting import count
from raysearch.reporting.figures.palette import Palette
from raysearch.reporting.findings import Finding
from raysearch.reporting.sections import Section
from raysearch.reporting.stats.analysis import Analysis
from raysearch.reporting.tables.numbers import UNKNOWN
from raysearch.reporting.tables.table import Table, as_markdown

if TYPE_CHECKING:
    from markupsafe import Markup


def html_page(
    analysis: Analysis, findings: Sequence[Finding], sections: Sequence[Section], drawn: Mapping[str, str]
) -> str:
    """The page; `drawn` are its figures as SVG, by name."""
    from markupsafe import Markup

    script = f"\n{_text('page.js')}"
    return _rendered(
        "page.html.j2",
        analysis,
        findings,
        sections,
        present={section.name for section in sections if not section.empty},
        method=[line for line in _text("method.txt").splitlines() if line],
        style=Markup(_text("page.css")),
        script=Markup(script),
        script_hash=f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}",
        drawn=drawn,
        inline=_inline,
        swatches=Palette.of(analysis.results).colours,
        shown=_shown,
    )


def markdown_page(analysis: Analysis, findings: Sequence[Finding], sections: Sequence[Section]) -> str:
    """The same as Markdown; figures are links to the files beside it."""
    return _rendered("page.md.j2", analysis, findings, sections, as_markdown=as_markdown)


def _rendered(
    template: str, analysis: Analysis, findings: Sequence[Finding], sections: Sequence[Section], **more: Any
) -> str:
    """A template filled with what both pages show, and more."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=template.endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=template.endswith(".md.j2"),
    )
    environment.filters["md"] = markdown
    return environment.from_string(_text(template)).render(
        results=analysis.results,
        extent=_extent(analysis.frame),
        findings=findings,
        sections=sections,
        facts={"study": analysis.results.study_id, **analysis.results.facts},
        **more,
    )


def _text(name: str) -> str:
    return (files("raysearch.reporting") / name).read_text(encoding="utf-8")


def _extent(frame: pd.DataFrame) -> str:
    """The extent of the study, in a line."""
    parts = [
        count(frame["model"].nunique(), "model"),
        count(frame["calibration"].nunique(), "calibration"),
        count(frame["searcher"].nunique(), "searcher"),
    ]
    sizes = ", ".join(map(str, sorted(frame["remove"].unique())))
    parts += [f"M ∈ {{{sizes}}}" if "," in sizes else f"M = {sizes}"]
    parts += [count(frame["draw"].nunique(), "draw")] if frame["draw"].nunique() > 1 else []
    parts += [count(frame["seed"].nunique(), "seed")]
    finished = int((frame["state"] == "finished").sum())
    return f"{' × '.join(parts)}: {count(len(frame), 'search', 'searches')}, {finished} finished"


def _shown(table: Table) -> dict[str, Any]:
    """A table as the page shows it: labels once a group, and no column for a label that is always the same."""
    kept = [place for place in range(len(table.columns)) if not _is_idle(table, place)]
    groups = [place for place in kept if table.columns[place].groups]
    labels = [[row[place].text for place in groups] for row in table.rows]
    body = []
    for number, row in enumerate(table.rows):
        before = labels[number - 1] if number else None
        cells = []
        for place in kept:
            depth = groups.index(place) + 1 if place in groups else 0
            if not depth or before is None or before[:depth] != labels[number][:depth]:
                span = _span(labels, number, depth) if depth else 1
                cells.append({"cell": row[place], "kind": table.columns[place].kind, "span": span})
        opens = before is not None and before != labels[number]
        kind = "dense" if table.has_dense and number == 0 else "first" if opens else "plain"
        body.append({"kind": kind, "cells": cells})
    return {"heads": [table.columns[place] for place in kept], "rows": body}


def _span(labels: Sequence[Sequence[str]], start: int, depth: int) -> int:
    """How many rows from this one on have the same labels, to that depth."""
    alike = itertools.takewhile(lambda one: one[:depth] == labels[start][:depth], labels[start:])
    return len(list(alike))


def _is_idle(table: Table, place: int) -> bool:
    """Return whether a column says nothing: a label that is always the same, or a number that is nowhere known."""
    texts = {row[place].text for row in table.rows[table.has_dense :]}
    return texts <= {UNKNOWN, ""} or (table.columns[place].may_hide and len(texts) == 1)


def _inline(svg: str, alt: str) -> Markup:
    """An SVG to stand in HTML: without the prolog, and with words for who cannot see it."""
    from markupsafe import Markup, escape

    body = svg[svg.index("<svg") :]
    return Markup(body.replace("<svg ", f'<svg role="img" aria-label="{escape(alt)}" ', 1))
