"""Plain text: each row is a document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from raysearch.calibration.batch import Form
from raysearch.calibration.fields import take_text
from raysearch.calibration.formats.base import Format, Text
from raysearch.calibration.windows import WindowOptions
from raysearch.errors import UserError


@dataclass(frozen=True)
class TextFormat(Format):
    """Documents.

    Args:
        field: The field that holds the text.
    """

    field: str = "text"

    offers = frozenset({Form.TEXT})
    draws = WindowOptions

    @override
    def read(self, row: Mapping[str, Any], where: str) -> Text:
        if (
            "." not in self.field
            and self.field not in row
            and (chats := [name for name, value in row.items() if _is_conversation(value)])
        ):
            messages = "" if chats[0] == "messages" else f" data.messages={chats[0]}"
            raise UserError(
                f"{where} has no data.field={self.field}, but a conversation in {chats[0]}; use data=chat{messages}"
            )
        return Text(take_text(row, "field", self.field, where))


def _is_conversation(value: Any) -> bool:
    """Return whether a value is a list of messages."""
    return (
        isinstance(value, list)
        and bool(value)
        and isinstance(value[0], Mapping)
        and bool({"role", "from"} & set(value[0]))
    )
