"""A table as values, written as Markdown and as CSV; the page's template writes it as HTML."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal

from raysearch.core.escaping import csv_cell, markdown, markdown_line
from raysearch.core.json import finite
from raysearch.core.mask import Mask
from raysearch.reporting.tables import numbers


@dataclass(frozen=True)
class Cell:
    """One cell of a table.

    Args:
        text: What people read.
        value: What the CSV file holds, in full precision; None for the text.
        error: Its standard error, a column of its own in the CSV file.
        small: Smaller lines under the text: the error, what is kept of the dense model.
        best: Whether it is the best of its group.
        tied: Whether it is not significantly worse than the best.
        link: Where it leads.
    """

    text: str
    value: float | int | str | None = None
    error: float | None = None
    small: str = ""
    best: bool = False
    tied: bool = False
    link: str | None = None


#: What a column holds, and its class on the page: numbers, words, searchers, the name of one among words, layers.
Kind = Literal["n", "w", "who", "name", "layers"]


@dataclass(frozen=True)
class Column:
    """A column: its head, and how it shows a record.

    Args:
        show: Makes a cell of a record.
        small: What stands under the title: the unit.
        groups: Whether the page rules off the rows that have the same label.
        may_hide: Whether the page leaves it out if it says the same everywhere.
        dense: Its cell in the row of the unpruned model.
    """

    title: str
    show: Callable[[Any], Cell]
    small: str = ""
    kind: Kind = "n"
    groups: bool = False
    may_hide: bool = False
    dense: Cell = Cell("")


@dataclass(frozen=True)
class Table:
    """A table.

    Args:
        name: Of its CSV file.
        has_dense: Whether its first row is the unpruned model.
    """

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    has_dense: bool = False


def tabulate(
    name: str,
    title: str,
    columns: Sequence[Column],
    records: Iterable[Any],
    note: str = "",
    has_dense: bool = False,
) -> Table | None:
    """Return a table of records, a row each; None if there are none."""
    rows = [[column.show(one) for column in columns] for one in records]
    dense = [[column.dense for column in columns]] if has_dense else []
    return Table(name, title, columns, [*dense, *rows], note, has_dense) if rows else None


def present(*tables: Table | None) -> list[Table]:
    """Return the tables that there are."""
    return [table for table in tables if table is not None]


def words(title: str, of: str | Callable[[Any], str], **options: Any) -> Column:
    """Return a column of texts.

    Args:
        title: Its title.
        of: The attribute of a record: ``setting.model``; or what returns the text of a record.
        options: More of `Column`.
    """
    read = attrgetter(of) if isinstance(of, str) else of
    return Column(title, lambda one: Cell(read(one)), **{"kind": "w", **options})


def number(
    title: str, of: str | Callable[[Any], float | None], form: Callable[[Any], str] = str, **options: Any
) -> Column:
    """Return a column of numbers, as `words`; `form` writes one."""
    read = attrgetter(of) if isinstance(of, str) else of
    return Column(title, lambda one: Cell(form(value := read(one)), finite(value)), **options)


def labels(path: str = "", calibration: bool = True) -> list[Column]:
    """Return the columns of model, calibration and M, which are attributes of what `path` names: ``setting.``."""
    within = [words("Calibration", f"{path}calibration", groups=True)] if calibration else []
    model = words("Model", f"{path}model", groups=True, may_hide=True)
    return [model, *within, number("M", f"{path}remove", groups=True)]


def layers(removed: tuple[int, ...], **options: Any) -> Cell:
    """Return the cell of removed layers; `options` are more of `Cell`."""
    return Cell(str(Mask(removed)) if removed else numbers.UNKNOWN, str(list(removed)), **options)


def as_markdown(table: Table) -> str:
    """A pipe table; the best in bold, links kept, small lines in brackets."""
    head = [markdown_line(column.title + (f" ({column.small})" if column.small else "")) for column in table.columns]
    rules = ["---:" if column.kind == "n" else "---" for column in table.columns]
    lines = [head, rules, *(map(_markdown, row) for row in table.rows)]
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    parts = [f"**{markdown(table.title)}**", body, markdown(table.note)]
    return "\n\n".join(part for part in parts if part)


def as_csv(table: Table) -> str:
    """Comma-separated values in full precision, standard errors in columns of their own."""
    columns: list[list[float | int | str | None]] = []
    for column, *cells in zip(table.columns, *table.rows, strict=True):
        columns.append([column.title, *(cell.text if cell.value is None else cell.value for cell in cells)])
        if any(cell.error is not None for cell in cells):
            columns.append([f"{column.title}: standard error", *(cell.error for cell in cells)])
    buffer = io.StringIO()
    lines = zip(*columns, strict=True)
    csv.writer(buffer, lineterminator="\n").writerows(map(csv_cell, line) for line in lines)
    return buffer.getvalue()


def _markdown(cell: Cell) -> str:
    text = markdown_line(cell.text)
    if cell.link and cell.text:
        target = re.sub(r"[<>\s|]", lambda found: f"%{ord(found[0]):02X}", cell.link)
        text = f"[{text}](<{target}>)"
    if cell.best:
        text = f"**{text}**"
    small = "; ".join(map(markdown_line, cell.small.splitlines()))
    return f"{text} ({small})" if small else text
