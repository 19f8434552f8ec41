"""Plain text, a document a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from raysearch.calibration.batch import Form
from raysearch.calibration.fields import take_text
from raysearch.calibration.formats.base import Format, Text
from raysearch.calibration.windows import WindowOptions


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
        return Text(take_text(row, "field", self.field, where))
