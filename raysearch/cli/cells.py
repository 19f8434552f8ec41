"""The parts that several tables of the terminal share: their columns, and the cells of a loss."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal

from rich.table import Table

from raysearch.cli.fitting import FittingTable
from raysearch.core.estimate import Estimate, estimate_text
from raysearch.core.mask import Mask
from raysearch.core.measure import Measure, readout_text
from raysearch.searching.result import uses_evaluation_split
from raysearch.text.numbers import size

Side = Literal["left", "center"]


def new_table(
    title: str,
    *columns: str,
    left_aligned: Sequence[str] = ("removed", "best"),
    at: Side = "center",
    expendable: Sequence[str] = (),
) -> FittingTable:
    """Return an empty table.

    Args:
        title: The title.
        *columns: The headers.
        left_aligned: The headers of columns that are aligned left; all others (numbers) are aligned right.
        at: The alignment of the title.
        expendable: The columns that a narrow terminal may leave out, in the order in which they are left out.

    Returns:
        The table, which has columns and no rows.
    """
    table = FittingTable(title=title, title_justify=at, expendable=expendable)
    for column in columns:
        table.add_column(column, justify="left" if column in left_aligned else "right")
    return table


def add_sections(table: Table, rows: Iterable[tuple[object, Sequence[str]]]) -> None:
    """Add rows to a table, with a line after each section.

    Args:
        table: The table.
        rows: The key of the section and the cells of each row.
    """
    for _, section in groupby(rows, key=lambda row: row[0]):
        for _, cells in section:
            table.add_row(*cells)
        table.add_section()


def loss_columns(measure: Measure) -> list[str]:
    """Return the headers of a loss: its unit, and its readout, if there is one."""
    return [f"loss ({measure.unit})", *([] if measure.readout is None else [measure.readout])]


def loss_cells(measure: Measure, loss: float) -> list[str]:
    """Return the cells of a loss, for the columns of `loss_columns`.

    Args:
        measure: The unit and readout of the loss.
        loss: The loss.

    Returns:
        The loss, and the readout if the measure has one.
    """
    cells = [f"{loss:.4f}"]
    if measure.readout is not None:
        cells.append(readout_text(measure, measure.read(loss)))
    return cells


def number_cell(estimate: Estimate | None, unit: str) -> str:
    """Return a number with its standard error; empty for None.

    Args:
        estimate: The number.
        unit: Its unit; bytes are shown as a size.

    Returns:
        The text of the cell.
    """
    return size(estimate.value) if estimate is not None and unit == "bytes" else estimate_text(estimate)


def extent(measure: Measure, n_tokens: int, n_samples: int) -> str:
    """Return the extent of a calibration: ``64 items (1,203 scored tokens)``.

    Args:
        measure: Its measure, which counts tokens or samples.
        n_tokens: The number of scored tokens; 0 for generated answers.
        n_samples: The number of samples.

    Returns:
        The text, which counts tokens, items or both.
    """
    tokens = f"{n_tokens:,} scored tokens"
    if measure.per != "sample":
        return tokens
    return f"{n_samples:,} items ({tokens})" if n_tokens else f"{n_samples:,} items"


def split_notes(data: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a warning if the samples are of an evaluation split."""
    if not uses_evaluation_split(data):
        return []
    return [
        "Warning: these samples are of an evaluation split (data.allow_evaluation_split=true): report no results on it"
    ]


def refusal_notes(refused: Mapping[Mask, str], mask: Mask) -> list[str]:
    """Return the explanation of the mark of refused masks, with one reason as an example.

    Args:
        refused: The masks that `export --gguf` refuses, each with the reason.
        mask: The mask to explain if it is refused; otherwise another is explained.

    Returns:
        One line; none if no mask is refused.
    """
    if not refused:
        return []
    example = mask if mask in refused else next(iter(refused))
    return [f"* export --gguf refuses {example}: {refused[example]}"]


def marked(mask: Mask, refused: Mapping[Mask, str]) -> str:
    """Return the text of a mask for a table, with a mark if `export --gguf` refuses it.

    Args:
        mask: The mask.
        refused: The masks that are refused, each with the reason.

    Returns:
        The mask's text; `` *`` follows if it is refused.
    """
    return f"{mask} *" if mask in refused else str(mask)


def next_lines(commands: Sequence[str]) -> list[str]:
    """Return the lines that suggest the next commands."""
    return [f"{'Next:' if number == 0 else '     '} raysearch {command}" for number, command in enumerate(commands)]


def left_out(reasons: Mapping[str, int]) -> str:
    """Return how many rows were left out for each reason, in brackets; empty if none were."""
    return f" ({', '.join(f'{n} {reason}' for reason, n in reasons.items())} left out)" if reasons else ""
