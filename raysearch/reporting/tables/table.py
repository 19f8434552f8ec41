"""A table as values, written as Markdown and as CSV; the page's template writes it as HTML."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Cell:
    """One cell of a table.

    Args:
        text: What people read.
        value: What the CSV file holds, in full precision; None for the text.
        error: Its standard error, a column of its own in the CSV file.
        small: Smaller lines under the text: the error, what is kept of the dense model.
        best: Whether it is the best of its group.
        tied: Whether it is within noise of the best.
        link: Where it leads.
        links: Further links, as ``(text, link)``, on a line of their own: one a seed.
    """

    text: str
    value: float | int | str | None = None
    error: float | None = None
    small: str = ""
    best: bool = False
    tied: bool = False
    link: str | None = None
    links: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Column:
    """A column: its title, what stands under it, and whether numbers do."""

    title: str
    small: str = ""
    numeric: bool = True


@dataclass(frozen=True)
class Row:
    """A row; ``first`` opens a group and is ruled off, ``dense`` is the unpruned model."""

    cells: Sequence[Cell]
    kind: Literal["plain", "first", "dense"] = "plain"


@dataclass(frozen=True)
class Table:
    """A table.

    Args:
        name: Of its CSV file.
        title: Over it.
        columns: Its head.
        rows: Its body.
        note: Under it.
    """

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    note: str = ""


def as_markdown(table: Table) -> str:
    """A pipe table; the best in bold, links kept, small lines in brackets."""
    head = [_escape(column.title + (f" ({column.small})" if column.small else "")) for column in table.columns]
    rules = ["---:" if column.numeric else "---" for column in table.columns]
    lines = [head, rules, *([_markdown(cell) for cell in row.cells] for row in table.rows)]
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    parts = [f"**{escape_markdown(table.title)}**", body, escape_markdown(table.note)]
    return "\n\n".join(part for part in parts if part)


def as_csv(table: Table) -> str:
    """Comma-separated values in full precision, standard errors in columns of their own."""
    with_error = [any(row.cells[place].error is not None for row in table.rows) for place in range(len(table.columns))]
    head: list[str] = []
    for column, errors in zip(table.columns, with_error, strict=True):
        head += [column.title] + [f"{column.title}: standard error"] * errors
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(head)
    for row in table.rows:
        values: list[float | int | str | None] = []
        for cell, errors in zip(row.cells, with_error, strict=True):
            values += [cell.text if cell.value is None else cell.value] + [cell.error] * errors
        writer.writerow(values)
    return buffer.getvalue()


def escape_markdown(text: str) -> str:
    """Text that Markdown shows as it is, HTML in it included."""
    escaped = re.sub(r"([\\`*_\[\]|])", r"\\\1", text)
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _escape(text: str) -> str:
    return escape_markdown(" ".join(text.split()))


def _markdown(cell: Cell) -> str:
    text = _linked(cell.text, cell.link) if cell.link and cell.text else _escape(cell.text)
    if cell.best:
        text = f"**{text}**"
    small = [_escape(line) for line in cell.small.splitlines()]
    small += [" ".join(_linked(label, link) for label, link in cell.links)] if cell.links else []
    return f"{text} ({'; '.join(small)})" if small else text


def _linked(text: str, link: str) -> str:
    target = re.sub(r"[<>\s|]", lambda found: f"%{ord(found[0]):02X}", link)
    return f"[{_escape(text)}](<{target}>)"


def heads(*titles: str, words: Sequence[str] = ()) -> list[Column]:
    """A table's head; the titles of columns that hold words are given in `words` too."""
    return [Column(title, numeric=title not in (*words, "Model", "Calibration", "Searcher")) for title in titles]
