from __future__ import annotations

from typing import Any

from raysearch.calibration.formats.base import Text
from raysearch.calibration.formats.text import TextFormat
from tests.cases import assert_refused

WHERE = "row 3 of data.path=a.jsonl"


def test_reads_a_document() -> None:
    assert TextFormat().read({"text": " a\n"}, WHERE) == Text(" a\n")
    assert TextFormat("body").read({"body": "", "text": 1}, WHERE) == Text("")


def test_names_the_row() -> None:
    cases: list[tuple[Any, str]] = [
        ({"texts": "b"}, f"{WHERE} has no data.field=text; did you mean 'texts'?"),
        ({"text": None}, f"{WHERE} holds null in data.field=text; fill it in, or leave the row out"),
        ({"text": float("inf")}, f"{WHERE} holds a number in data.field=text"),  # as JSON's 1e400
        ({"text": ["b"]}, f"{WHERE} holds a list in data.field=text; name a field that holds text"),
    ]
    chats = {"conversations": [{"from": "human", "value": "a"}]}
    cases.append((chats, "but a conversation in conversations; use data=chat data.messages=conversations"))
    assert_refused(lambda **row: TextFormat().read(row, WHERE), cases)
