from __future__ import annotations

from raysearch.calibration.formats.base import Text
from raysearch.calibration.formats.text import TextFormat
from tests.sentences import Sentences

WHERE = "row 3 of data.path=a.jsonl"


def test_reads_a_document() -> None:
    assert TextFormat().read({"text": " a\n"}, WHERE) == Text(" a\n")
    assert TextFormat("body").read({"body": "", "text": 1}, WHERE) == Text("")


def test_names_the_row(sentences: Sentences) -> None:
    cases = [
        {"texts": "b"},
        {"text": None},
        {"text": float("inf")},  # as JSON's 1e400
        {"text": ["b"]},
    ]
    chats = {"conversations": [{"from": "human", "value": "a"}]}
    cases.append(chats)
    sentences.refused_each(lambda **row: TextFormat().read(row, WHERE), cases)
