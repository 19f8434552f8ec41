from __future__ import annotations

import pytest

from raysearch.calibration.formats.base import Text
from raysearch.calibration.formats.text import TextFormat
from raysearch.errors import UserError

WHERE = "row 3 of data.path=a.jsonl"


def test_reads_a_document() -> None:
    assert TextFormat().read({"text": " a\n"}, WHERE) == Text(" a\n")
    assert TextFormat("body").read({"body": "", "text": 1}, WHERE) == Text("")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"texts": "b"}, f"{WHERE} has no data.field=text; did you mean 'texts'?"),
        ({"text": None}, f"{WHERE} holds null in data.field=text; name a field that holds text"),
        ({"text": ["b"]}, f"{WHERE} holds a list in data.field=text; name a field that holds text"),
    ],
)
def test_names_the_row(row: dict[str, object], message: str) -> None:
    with pytest.raises(UserError) as caught:
        TextFormat().read(row, WHERE)
    assert str(caught.value) == message
