"""Tables that fit a terminal: columns are left out where there is no room, and no cell is cut."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.cells import cell_len
from rich.table import Column, Table
from typing_extensions import override

_MOST_OF_A_WORD = 30  # characters; a longer word, such as a path, is folded
_BESIDE_A_CELL = 3  # characters: a space at each side, and a line


class FittingTable(Table):
    """A table that names columns which a narrow terminal may leave out.

    Attributes:
        expendable: The headers of these columns, those that go first first.
    """

    expendable: Sequence[str] = ()

    @override
    def __init__(self, *, title: str, title_justify: str = "center", expendable: Sequence[str] = ()) -> None:
        super().__init__(title=title, title_justify=title_justify)  # type: ignore[arg-type]
        self.expendable = expendable

    def fitted(self, width: int) -> Table:
        """Return the table as it fits a terminal, its headers and sentences on several lines.

        Args:
            width: Of the terminal, in characters. Masks and numbers are whole even where they take more.
        """
        columns = [*self.columns]
        if _width_of([_whole(column) for column in columns]) <= width:
            return self
        left_out = []
        for header in self.expendable:
            if _width_of(map(_least, columns)) <= width:
                break
            left_out += [header] if any(column.header == header for column in columns) else []
            columns = [column for column in columns if column.header != header]
        return self._with(columns, _widths(columns, width), left_out)

    def _with(self, columns: Sequence[Column], widths: Sequence[int], left_out: Sequence[str]) -> Table:
        """Return a copy with some of the columns."""
        caption = f"No room here for: {', '.join(left_out)}" if left_out else None
        copy = Table(title=self.title, title_justify=self.title_justify, caption=caption, caption_justify="left")
        copy.width = _width_of(widths)  # a table that is wider than the terminal would else cut masks
        for column, width in zip(columns, widths, strict=True):
            copy.add_column(column.header, justify=column.justify, overflow="fold", width=width)
        cells = zip(*(column.cells for column in columns), strict=True)
        for row, values in zip(self.rows, cells, strict=True):
            copy.add_row(*values, end_section=row.end_section)
        return copy


def _widths(columns: Sequence[Column], width: int) -> list[int]:
    """Return the width of each column: what it needs, and of what is left over as much as it can use."""
    widths = [*map(_least, columns)]
    for place, column in enumerate(columns):
        spare = max(0, width - _width_of(widths))
        widths[place] += min(spare, max(0, _whole(column) - widths[place]))
    return widths


def _width_of(widths: Sequence[int] | map[int]) -> int:
    """Return the width of a table by that of its columns."""
    return sum(width + _BESIDE_A_CELL for width in widths) + 1


def _whole(column: Column) -> int:
    """Return the width of a column that breaks no line."""
    return max(cell_len(str(text)) for text in (column.header, *column.cells))


def _least(column: Column) -> int:
    """Return the width that a column needs: of its longest word where it has sentences, else of its longest cell."""
    cells = [str(cell) for cell in column.cells]
    has_sentences = any(re.search(r"[A-Za-z]{3,}\S* ", cell) for cell in cells)
    words = [word for text in (str(column.header), *(cells if has_sentences else [])) for word in text.split()]
    lengths = [cell_len(word) if "{" in word else min(cell_len(word), _MOST_OF_A_WORD) for word in words]
    return max([*lengths, *([] if has_sentences else map(cell_len, cells)), 1])
