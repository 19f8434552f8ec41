"""Tables that fit a terminal: columns are left out if there is no room, and no cell is cut."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.cells import cell_len
from rich.table import Column, Table
from typing_extensions import override

#: The longest word, in characters, that is not folded: the first of these for which there is room. Masks never are.
_LONGEST_WORDS = (32, 24, 16)
_CELL_MARGIN = 3  # characters: a space on each side, and a line


class FittingTable(Table):
    """A table with columns that a narrow terminal may leave out.

    Attributes:
        expendable: The headers of these columns, in the order in which they are left out.
    """

    expendable: Sequence[str] = ()

    @override
    def __init__(self, *, title: str, title_justify: str = "center", expendable: Sequence[str] = ()) -> None:
        super().__init__(title=title, title_justify=title_justify)  # type: ignore[arg-type]
        self.expendable = expendable

    def fitted(self, width: int) -> Table:
        """Return the table fitted to a terminal, with headers and sentences on several lines if needed.

        Args:
            width: The terminal's width, in characters. Masks and numbers are never cut, even if they need more.
        """
        columns = [*self.columns]
        if _width_of([_whole(column) for column in columns]) <= width:
            return self
        left_out = []
        for header in self.expendable:
            if _width_of(_needed(columns, _LONGEST_WORDS[0])) <= width:
                break
            if any(column.header == header for column in columns):
                left_out.append(header)
            columns = [column for column in columns if column.header != header]
        for longest_word in _LONGEST_WORDS:
            widths = _needed(columns, longest_word)
            if _width_of(widths) <= width:
                break
        return self._with(columns, _filled(columns, widths, width), left_out)

    def _with(self, columns: Sequence[Column], widths: Sequence[int], left_out: Sequence[str]) -> Table:
        """Return a copy with some of the columns."""
        caption = f"No room here for: {', '.join(left_out)}" if left_out else None
        copy = Table(title=self.title, title_justify=self.title_justify, caption=caption, caption_justify="left")
        copy.width = _width_of(widths)  # otherwise a table that is wider than the terminal cuts masks
        for column, width in zip(columns, widths, strict=True):
            copy.add_column(column.header, justify=column.justify, overflow="fold", width=width)
        cells = zip(*(column.cells for column in columns), strict=True)
        for row, values in zip(self.rows, cells, strict=True):
            copy.add_row(*values, end_section=row.end_section)
        return copy


def _filled(columns: Sequence[Column], widths: Sequence[int], width: int) -> list[int]:
    """Return the widths of columns, widened to their content as far as the terminal's width allows."""
    filled = [*widths]
    for index, column in enumerate(columns):
        spare = max(0, width - _width_of(filled))
        filled[index] += min(spare, max(0, _whole(column) - filled[index]))
    return filled


def _width_of(widths: Sequence[int]) -> int:
    """Return the width of a table with columns of these widths."""
    return sum(width + _CELL_MARGIN for width in widths) + 1


def _whole(column: Column) -> int:
    """Return the width that a column needs without breaking a line."""
    return max(cell_len(str(text)) for text in (column.header, *column.cells))


def _needed(columns: Sequence[Column], longest_word: int) -> list[int]:
    """Return the widths that columns need if words of more than `longest_word` characters are folded."""
    return [_least(column, longest_word) for column in columns]


def _least(column: Column, longest_word: int) -> int:
    """Return the width that a column needs: its longest word if its cells are texts, otherwise its longest cell."""
    cells = [str(cell) for cell in column.cells]
    has_texts = column.justify == "left" or any(re.search(r"[A-Za-z]{3,}\S* ", cell) for cell in cells)
    words = [word for text in (str(column.header), *(cells if has_texts else [])) for word in text.split()]
    lengths = [cell_len(word) if "{" in word else min(cell_len(word), longest_word) for word in words]
    return max([*lengths, *([] if has_texts else map(cell_len, cells)), 1])
