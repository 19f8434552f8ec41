"""A table as values, with functions that write it as Markdown and as CSV; the page's template writes it as HTML."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal

from raysearch.core.json import finite
from raysearch.core.mask import Mask
from raysearch.text import numbers
from raysearch.text.escaping import csv_cell, markdown, markdown_line


@dataclass(frozen=True)
class TableCell:
    """One cell of a table.

    Args:
        text: The text that readers see.
        value: The value in the CSV file, in full precision; None for the text.
        error: Its standard error, a separate column in the CSV file.
        small: Smaller lines under the text: the error, the share of the dense model's value.
        best: Whether it is the best of its group.
        tied: Whether it is not significantly worse than the best.
        link: The address of its link; None for no link.
    """

    text: str
    value: float | int | str | None = None
    error: float | None = None
    small: str = ""
    best: bool = False
    tied: bool = False
    link: str | None = None


#: The kind of a column, and its class on the page: numbers, texts, searchers, a searcher's name in a text, layers.
Kind = Literal["n", "w", "who", "name", "layers"]


@dataclass(frozen=True)
class Column:
    """A column: its head, and the function that makes its cells.

    Args:
        title: Its title.
        show: Makes a cell from a record.
        small: The text under the title: the unit.
        kind: The kind of its cells.
        groups: Whether the page draws a line between groups of rows with different labels.
        may_hide: Whether the page leaves it out if its text is the same in all rows.
        dense: Its cell in the row of the unpruned model.
    """

    title: str
    show: Callable[[Any], TableCell]
    small: str = ""
    kind: Kind = "n"
    groups: bool = False
    may_hide: bool = False
    dense: TableCell = TableCell("")


@dataclass(frozen=True)
class Table:
    """A table.

    Args:
        name: The name of its CSV file, without the suffix.
        title: Its title.
        columns: Its columns.
        rows: Its rows, a cell for each column.
        note: The text under the table; empty for none.
        has_dense: Whether its first row is the unpruned model.
    """

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[TableCell]]
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
    """Return a table of records, a row each.

    Args:
        name: The name of its CSV file, without the suffix.
        title: Its title.
        columns: Its columns.
        records: The objects that the columns show.
        note: The text under the table.
        has_dense: Whether the first row is the unpruned model, see `Column.dense`.

    Returns:
        The table; None if there are no records.
    """
    rows = [[column.show(record) for column in columns] for record in records]
    dense = [[column.dense for column in columns]] if has_dense else []
    return Table(name, title, columns, [*dense, *rows], note, has_dense) if rows else None


def present(*tables: Table | None) -> list[Table]:
    """Return the tables that are not None."""
    return [table for table in tables if table is not None]


def words(title: str, source: str | Callable[[Any], str], **options: Any) -> Column:
    """Return a column of texts.

    Args:
        title: Its title.
        source: The attribute of a record, as ``setting.model``; or a function that returns the text of a record.
        options: Other arguments of `Column`.

    Returns:
        The column.
    """
    read = attrgetter(source) if isinstance(source, str) else source
    return Column(title, lambda record: TableCell(read(record)), **{"kind": "w", **options})


def number(
    title: str, source: str | Callable[[Any], float | None], form: Callable[[Any], str] = str, **options: Any
) -> Column:
    """Return a column of numbers.

    Args:
        title: Its title.
        source: The attribute of a record; or a function that returns the number of a record.
        form: Returns the text of a number.
        options: Other arguments of `Column`.

    Returns:
        The column. In the CSV file its numbers have full precision.
    """
    read = attrgetter(source) if isinstance(source, str) else source
    return Column(title, lambda record: TableCell(form(value := read(record)), finite(value)), **options)


def labels(path: str = "", calibration: bool = True) -> list[Column]:
    """Return the columns of model, calibration and M.

    Args:
        path: The attribute of a record that has these labels, with a dot: ``setting.``; empty for the record itself.
        calibration: Whether there is a column of the calibration.

    Returns:
        The columns, without the calibration if `calibration` is not set.
    """
    columns = [words("Model", f"{path}model", groups=True, may_hide=True)]
    if calibration:
        columns.append(words("Calibration", f"{path}calibration", groups=True))
    columns.append(number("M", f"{path}remove", groups=True))
    return columns


def layers(removed: tuple[int | str, ...], **options: Any) -> TableCell:
    """Return the cell of removed layers and halves.

    Args:
        removed: They, in the order of the model; empty if they are not known.
        options: Other arguments of `TableCell`.

    Returns:
        The cell, which readers see as a mask, and the CSV file has as a list.
    """
    return TableCell(str(Mask.of(*removed)) if removed else numbers.UNKNOWN, str(list(removed)), **options)


def as_markdown(table: Table) -> str:
    """Return a table as a Markdown pipe table, the best in bold, small lines in brackets."""
    head = [markdown_line(column.title + (f" ({column.small})" if column.small else "")) for column in table.columns]
    rules = ["---:" if column.kind == "n" else "---" for column in table.columns]
    lines = [head, rules, *(map(_markdown, row) for row in table.rows)]
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    parts = [f"**{markdown(table.title)}**", body, markdown(table.note)]
    return "\n\n".join(part for part in parts if part)


def as_csv(table: Table) -> str:
    """Return a table as comma-separated values in full precision, with separate columns of standard errors."""
    columns: list[list[float | int | str | None]] = []
    for column, *cells in zip(table.columns, *table.rows, strict=True):
        columns.append([column.title, *(cell.text if cell.value is None else cell.value for cell in cells)])
        if any(cell.error is not None for cell in cells):
            columns.append([f"{column.title}: standard error", *(cell.error for cell in cells)])
    buffer = io.StringIO()
    lines = zip(*columns, strict=True)
    csv.writer(buffer, lineterminator="\n").writerows(map(csv_cell, line) for line in lines)
    return buffer.getvalue()


def _markdown(cell: TableCell) -> str:
    text = markdown_line(cell.text)
    if cell.link and cell.text:
        target = re.sub(r"[<>\s|]", lambda match: f"%{ord(match[0]):02X}", cell.link)
        text = f"[{text}](<{target}>)"
    if cell.best:
        text = f"**{text}**"
    small = "; ".join(map(markdown_line, cell.small.splitlines()))
    return f"{text} ({small})" if small else text
