"""Questions with an answer and without choices: GSM8K, arithmetic, instructions and responses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from raysearch.calibration.batch import Form
from raysearch.calibration.fields import check_prompt, fill, take_answer, take_text
from raysearch.calibration.formats.base import Format, Item
from raysearch.calibration.items import ItemOptions


@dataclass(frozen=True)
class QuestionsFormat(Format):
    r"""Open questions.

    Args:
        question: The field of the question.
        answer: The field of the answer, a text or a number. It is scored, or a generated answer is checked against it.
        expected: The field that a generated answer is checked against, if `answer` holds a derivation; None for the
            field `answer`, in which the number after ``####`` counts, if there is one.
        prompt: The text before the answer, with fields of the row in braces.
        separator: The text between prompt and answer.
        group: The field of the sub-task, to draw from each sub-task; None if there is only one.
    """

    question: str = "question"
    answer: str = "answer"
    expected: str | None = None
    prompt: str = "Question: {question}\nAnswer:"
    separator: str = " "
    group: str | None = None

    offers = frozenset({Form.TEXT, Form.PROMPT})
    draws = ItemOptions

    def __post_init__(self) -> None:
        super().__post_init__()
        check_prompt(self.prompt)

    @override
    def read(self, row: Mapping[str, Any], where: str) -> Item:
        expected = None if self.expected is None else take_answer(row, "expected", self.expected, where).strip()
        return Item(
            prompt=fill(self.prompt, row, where, question=self.question),
            choices=(take_answer(row, "answer", self.answer, where),),
            gold=0,
            separator=self.separator,
            group="" if self.group is None else take_text(row, "group", self.group, where),
            answer=expected,
        )
