from __future__ import annotations

from typing import Any

from raysearch.calibration.formats.base import Item
from raysearch.calibration.formats.questions import QuestionsFormat
from tests.sentences import Sentences

WHERE = "row 3 of data.path=a.jsonl"


def test_gsm8k() -> None:
    row = {"question": "How many?", "answer": "2 + 3 = <<2+3=5>>5\n#### 5"}
    assert QuestionsFormat().read(row, WHERE) == Item("Question: How many?\nAnswer:", (row["answer"],), 0)


def test_arithmetic() -> None:
    format_ = QuestionsFormat("context", "completion", prompt="{question}", separator="")
    row = {"context": "Question: What is 98 plus 45?\nAnswer:", "completion": " 143"}
    assert format_.read(row, WHERE) == Item(row["context"], (" 143",), 0, separator="")


def test_numbers_short_answers_and_groups() -> None:
    row: dict[str, Any] = {"question": "How many?", "answer": "One and one make two.", "short": 2, "topic": "sums"}
    item = QuestionsFormat(expected="short", group="topic").read(row, WHERE)
    assert item == Item("Question: How many?\nAnswer:", (row["answer"],), 0, group="sums", answer="2")
    assert QuestionsFormat(answer="short").read(row, WHERE).choices == ("2",)


def test_names_the_row_and_the_way_out(sentences: Sentences) -> None:
    cases = [
        {"answer": " "},
        {"answer": None},
        {"answer": ["a"]},
        {"question": 1.5, "answer": {}},
        {"question": ["a"]},
    ]
    sentences.refused_each(
        lambda **row: QuestionsFormat().read({"question": "Who?", "answer": "me"} | row, WHERE), cases
    )
    missing = [{"question": "Who?", "answers": "me"}]
    sentences.refused_each(lambda **row: QuestionsFormat().read(row, WHERE), missing)
