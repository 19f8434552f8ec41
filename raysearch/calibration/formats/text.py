"""Plain text, a document a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from raysearch.calibration.batch import Form
from raysearch.calibration.fields import take_text
from raysearch.calibration.formats.base import Text
from raysearch.calibration.windows import WindowOptions


@dataclass(frozen=True)
class TextFormat:
    """Documents.

    Args:
        field: The field that holds the text.
    """

    field: str = "text"

    offers: ClassVar[frozenset[Form]] = frozenset({Form.TEXT})
    draws: ClassVar[type] = WindowOptions

    def read(self, row: Mapping[str, Any], where: str) -> Text:
        """See `Format.read`."""
        return Text(take_text(row, "field", self.field, where))
