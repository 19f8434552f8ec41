"""The parts that several tables of the terminal share: their columns, and the cells of a loss."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal

from rich.table import Table

from raysearch.cli.fitting import FittingTable
from raysearch.core.estimate import Estimate, Metric, shown
from raysearch.core.formatting import size
from raysearch.core.mask import Mask
from raysearch.core.measure import Measure, readout_text
from raysearch.searching.result import uses_evaluation_split

Side = Literal["left", "center"]


def new_table(
    title: str,
    *columns: str,
    left: Sequence[str] = ("removed", "best"),
    at: Side = "center",
    expendable: Sequence[str] = (),
) -> FittingTable:
    """Return an empty table.

    Args:
        title: What it shows.
        *columns: The headers.
        left: The columns that are aligned left; all others (numbers) are aligned right.
        at: The side of the title.
        expendable: The columns that a narrow terminal may leave out, in the order in which they go.
    """
    table = FittingTable(title=title, title_justify=at, expendable=expendable)
    for column in columns:
        table.add_column(column, justify="left" if column in left else "right")
    return table


def add_sections(table: Table, rows: Iterable[tuple[object, Sequence[str]]]) -> None:
    """Add rows, each the key of its section and its cells, with a line where a section ends."""
    for _, section in groupby(rows, key=lambda row: row[0]):
        for _, cells in section:
            table.add_row(*cells)
        table.add_section()


def loss_columns(measure: Measure) -> list[str]:
    """Return the headers of a loss: its unit, and its readout, if there is one."""
    return [f"loss ({measure.unit})", *([] if measure.readout is None else [measure.readout])]


def loss_cells(measure: Measure, loss: float) -> list[str]:
    """Return the cells under `loss_columns`."""
    cells = [f"{loss:.4f}"]
    if measure.readout is not None:
        cells.append(readout_text(measure, measure.read(loss)))
    return cells


def metric_head(metric: Metric) -> str:
    """Return the title of a metric, its unit, and which way is better."""
    arrow = "higher" if metric.higher_is_better else "lower"
    return f"{metric.title} ({metric.unit}, {arrow} is better)"


def number_cell(one: Estimate | None, unit: str) -> str:
    """Return a number with its standard error, bytes as a size; empty for None."""
    return size(one.value) if one is not None and unit == "bytes" else shown(one)


def extent(measure: Measure, n_tokens: int, n_samples: int) -> str:
    """Return the extent of a calibration: ``64 items (1,203 scored tokens)``."""
    tokens = f"{n_tokens:,} scored tokens"
    if measure.per != "sample":
        return tokens
    return f"{n_samples:,} items ({tokens})" if n_tokens else f"{n_samples:,} items"  # generated ones have none


def split_notes(data: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a warning if the samples are of an evaluation split."""
    if not uses_evaluation_split(data):
        return []
    return [
        "Warning: these samples are of an evaluation split (data.allow_evaluation_split=true): report no results on it"
    ]


def refusal_notes(refused: Mapping[Mask, str], mask: Mask) -> list[str]:
    """Return what the mark of refused masks means, with the reason for `mask` if it is one, else for another."""
    if not refused:
        return []
    example = mask if mask in refused else next(iter(refused))
    return [f"* export --gguf refuses {example}: {refused[example]}"]


def marked(mask: Mask, refused: Mapping[Mask, str]) -> str:
    """Return a mask for a table, with a mark if `export --gguf` refuses it."""
    return f"{mask} *" if mask in refused else str(mask)


def next_lines(commands: Sequence[str]) -> list[str]:
    """Return the lines that say which commands come next."""
    openings = ["Next:", *["     "] * len(commands)]
    return [f"{opening} raysearch {command}" for opening, command in zip(openings, commands, strict=False)]


def left_out(reasons: Mapping[str, int]) -> str:
    """Return how many rows were left out and why, in brackets; nothing where none were."""
    return f" ({', '.join(f'{n} {reason}' for reason, n in reasons.items())} left out)" if reasons else ""
