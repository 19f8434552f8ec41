"""Tables that fit a terminal: columns are left out where there is no room, and no cell is cut."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.cells import cell_len
from rich.table import Column, Table
from typing_extensions import override

#: Characters of a word, such as a path, that is not folded: where there is room, else where there is less. No mask is.
_WHOLE_WORDS = (32, 24, 16)
_BESIDE_A_CELL = 3  # characters: a space at each side, and a line


class FittingTable(Table):
    """A table that names columns which a narrow terminal may leave out.

    Attributes:
        expendable: The headers of these columns, in the order in which they go.
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
            if _width_of(_needed(columns, _WHOLE_WORDS[0])) <= width:
                break
            left_out += [header] if any(column.header == header for column in columns) else []
            columns = [column for column in columns if column.header != header]
        widths = next(
            (needed for word in _WHOLE_WORDS if _width_of(needed := _needed(columns, word)) <= width),
            _needed(columns, _WHOLE_WORDS[-1]),
        )
        return self._with(columns, _filled(columns, widths, width), left_out)

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


def _filled(columns: Sequence[Column], widths: Sequence[int], width: int) -> list[int]:
    """Return the widths of columns with what is left over of a terminal's, as far as they can use it."""
    filled = [*widths]
    for place, column in enumerate(columns):
        spare = max(0, width - _width_of(filled))
        filled[place] += min(spare, max(0, _whole(column) - filled[place]))
    return filled


def _width_of(widths: Sequence[int]) -> int:
    """Return the width of a table by that of its columns."""
    return sum(width + _BESIDE_A_CELL for width in widths) + 1


def _whole(column: Column) -> int:
    """Return the width of a column that breaks no line."""
    return max(cell_len(str(text)) for text in (column.header, *column.cells))


def _needed(columns: Sequence[Column], longest_word: int) -> list[int]:
    """Return the widths that columns need if words are folded that are longer than so many characters."""
    return [_least(column, longest_word) for column in columns]


def _least(column: Column, longest_word: int) -> int:
    """Return the width that a column needs: of its longest word where texts stand, else of its longest cell."""
    cells = [str(cell) for cell in column.cells]
    has_texts = column.justify == "left" or any(re.search(r"[A-Za-z]{3,}\S* ", cell) for cell in cells)
    words = [word for text in (str(column.header), *(cells if has_texts else [])) for word in text.split()]
    lengths = [cell_len(word) if "{" in word else min(cell_len(word), longest_word) for word in words]
    return max([*lengths, *([] if has_texts else map(cell_len, cells)), 1])
