"""The report as one HTML page that needs nothing but itself, and as Markdown beside its figures."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from raysearch.reporting.figures.style import palette_of
from raysearch.reporting.findings.findings import Finding
from raysearch.reporting.sections import Section
from raysearch.reporting.stats.analysis import Analysis
from raysearch.reporting.tables.numbers import UNKNOWN
from raysearch.reporting.tables.table import Table, as_markdown, escape_markdown


def html_page(
    analysis: Analysis, findings: Sequence[Finding], sections: Sequence[Section], drawn: Mapping[str, str]
) -> str:
    """The page.

    Args:
        analysis: The study.
        findings: What stands at the top.
        sections: What follows.
        drawn: The figures as SVG, by name.
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    folder = files("raysearch.reporting")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((folder / "page.html.j2").read_text(encoding="utf-8"))
    alts = {picture.name: picture.alt for section in sections for picture in section.pictures}
    return template.render(
        results=analysis.results,
        extent=extent(analysis),
        findings=findings,
        sections=sections,
        present={section.name for section in sections if not section.empty},
        method=[
            line.split(". ", 1) for line in (folder / "method.txt").read_text(encoding="utf-8").splitlines() if line
        ],
        style=Markup((folder / "page.css").read_text(encoding="utf-8")),
        facts=facts(analysis),
        figures={name: Markup(_inline(text, alts[name])) for name, text in drawn.items()},
        swatches=palette_of(analysis.results).colours,
        shown=_shown,
        safe_link=_safe_link,
    )


def markdown_page(analysis: Analysis, findings: Sequence[Finding], sections: Sequence[Section]) -> str:
    """The same as Markdown; figures are links to the files beside it."""
    results = analysis.results
    lines = [f"# {escape_markdown(results.name)}", escape_markdown(extent(analysis)), "## Findings"]
    rows = [(finding.question, finding.verdict, finding.sure) for finding in findings]
    heads = ("Question", "Finding", "How sure")
    lines.append("\n".join(f"| {' | '.join(map(escape_markdown, row))} |" for row in (heads, ("---",) * 3, *rows)))
    for section in sections:
        if section.empty:
            continue
        lines.append(f"## {section.title}")
        lines += [escape_markdown(section.intro)] if section.intro else []
        for picture in section.pictures:
            lines.append(f"![{escape_markdown(picture.title)}](figures/{picture.name}.png)")
            lines.append(f"*{escape_markdown(picture.title)}.* {escape_markdown(picture.caption)}")
        lines += [as_markdown(table) for table in section.tables]
    missing = [f"- {section.title.rstrip('?')}: {section.intro}" for section in sections if section.empty]
    lines += ["## What this study is too small for", "\n".join(missing)] if missing else []
    lines.append("## Facts")
    lines.append(
        "\n".join(f"- {escape_markdown(name)}: {escape_markdown(text)}" for name, text in facts(analysis).items())
    )
    return "\n\n".join(line for line in lines if line) + "\n"


def facts(analysis: Analysis) -> dict[str, str]:
    """The facts that a reader needs to trust the study, its name first."""
    return {"study": analysis.results.study_id, **analysis.results.facts}


def extent(analysis: Analysis) -> str:
    """The extent of the study, in a line."""
    frame = analysis.frame
    parts = [
        _several(frame[column].nunique(), what)
        for column, what in (("model", "model"), ("calibration", "calibration"), ("searcher", "searcher"))
    ]
    sizes = ", ".join(str(size) for size in sorted(set(frame["remove"])))
    parts += [f"M = {sizes}" if "," not in sizes else f"M ∈ {{{sizes}}}", _several(frame["seed"].nunique(), "seed")]
    finished = int((frame["state"] == "finished").sum())
    return f"{' × '.join(parts)}: {_several(len(frame), 'search')}, {finished} finished"


def _several(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}{'es' if what.endswith('ch') else 's'}"


def _shown(table: Table) -> dict[str, Any]:
    """A table as the page shows it: labels once a group, and no column for a label that is always the same."""
    kept = [place for place in range(len(table.columns)) if not _is_idle(table, place)]
    groups = [place for place in kept if table.columns[place].groups]
    labels = [[row[place].text for place in groups] for row in table.rows]
    body = []
    for number, row in enumerate(table.rows):
        same = _n_alike(labels[number - 1], labels[number]) if number else 0
        cells = []
        for place in kept:
            depth = groups.index(place) + 1 if place in groups else 0
            if not depth or same < depth:
                span = _span(labels, number, depth) if depth else 1
                cells.append({"cell": row[place], "kind": table.columns[place].kind, "span": span})
        opens = number > 0 and same < len(groups)
        kind = "dense" if table.has_dense and number == 0 else "first" if opens else "plain"
        body.append({"kind": kind, "cells": cells})
    return {"heads": [table.columns[place] for place in kept], "rows": body}


def _span(labels: Sequence[Sequence[str]], start: int, depth: int) -> int:
    """How many rows from this one on have the same labels, to that depth."""
    alike = itertools.takewhile(lambda one: _n_alike(labels[start], one) >= depth, labels[start:])
    return sum(1 for _ in alike)


def _n_alike(some: Sequence[str], others: Sequence[str]) -> int:
    """How many labels are the same, from the first on."""
    return next((n for n, (a, b) in enumerate(zip(some, others, strict=True)) if a != b), len(some))


def _is_idle(table: Table, place: int) -> bool:
    """Whether a column says nothing: a label that is always the same, or a number that is nowhere known."""
    texts = {row[place].text for row in table.rows[table.has_dense :]}
    return texts <= {UNKNOWN, ""} or (table.columns[place].may_hide and len(texts) == 1)


def _inline(svg: str, alt: str) -> str:
    """An SVG to stand in HTML: without the prolog, and with words for who cannot see it."""
    from markupsafe import escape

    body = svg[svg.index("<svg") :]
    return body.replace("<svg ", f'<svg role="img" aria-label="{escape(alt)}" ', 1)


def _safe_link(link: str | None) -> str | None:
    """A link that a browser may follow; anything that would run a script is none."""
    return link if link and re.match(r"(https?://|file://|[\w./#-]+$|#)", link) else None
