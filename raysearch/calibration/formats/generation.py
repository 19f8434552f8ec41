"""Tasks with a generated answer, in any shape: mathematics, code, summaries. The data declares the check."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import PositiveFloat, PositiveInt
from typing_extensions import override

from raysearch.calibration.batch import Form
from raysearch.calibration.fields import check_prompt, fill, take_answer, take_text
from raysearch.calibration.formats.base import Format, Task
from raysearch.calibration.items import ItemOptions
from raysearch.errors import UserError
from raysearch.generation.answer import Answer, Check, CodeTests


@dataclass(frozen=True)
class GenerationFormat(Format):
    """Tasks that a model answers by a text.

    A template is a text with fields of the row in braces. A field that is a list of texts fills in one line for each
    text; ``{field.0}`` is the first text.

    Args:
        prompt: The template of the prompt.
        check: The check of an answer; see `raysearch.generation.answer.Check`.
        answer: The field of the right answer, a text or a number; None if tests alone decide.
        system: The system prompt.
        opening: The template of the answer's beginning, which is part of the prompt.
        chat: Whether the prompt uses the model's chat template; None to use it if the model has one.
        thinking: Whether the chat template requests thinking before the answer; None for the template's default.
        pattern: The regular expression of the check ``regex``; its last match counts, or the first group of that match.
        tests: The template of the tests of the check ``code``.
        tests_plus: The template of additional tests, whose result is recorded separately; None for none.
        setup: The template of the code that runs before the answer's code.
        timeout_s: The time limit of each set of tests, in seconds.
        max_new_tokens: The most tokens of an answer.
        stop: Texts at which an answer ends.
        group: The field of the sub-task, to draw from each sub-task; None if there is only one.
    """

    prompt: str
    check: Check
    answer: str | None = None
    system: str = ""
    opening: str = ""
    chat: bool | None = None
    thinking: bool | None = None
    pattern: str | None = None
    tests: str | None = None
    tests_plus: str | None = None
    setup: str = ""
    timeout_s: PositiveFloat = 30.0
    max_new_tokens: PositiveInt = 512
    stop: Sequence[str] = ()
    group: str | None = None

    offers = frozenset({Form.TEXT, Form.PROMPT})
    draws = ItemOptions

    def __post_init__(self) -> None:
        super().__post_init__()
        check_prompt(self.prompt)
        needs = {"code": "tests", "regex": "pattern"}.get(self.check, "answer")
        if getattr(self, needs) is None:
            raise UserError(f"data.check={self.check} needs data.{needs}=…")
        if self.check == "regex" and self.answer is None:
            raise UserError("data.check=regex needs data.answer=…, to compare what is found with")
        if self.check == "choice":
            raise UserError("data.check=choice needs choices; use data=multiple_choice")
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise UserError(
                    f"data.pattern={self.pattern} is not a regular expression ({error}); mend it"
                ) from error
        if not all(self.stop):
            raise UserError("data.stop has an empty text; leave it out")

    @override
    def read(self, row: Mapping[str, Any], where: str) -> Task:
        row = _fields(row)
        expected = "" if self.answer is None else take_answer(row, "answer", self.answer, where)
        tests = None
        if self.check == "code":
            assert self.tests is not None, "checked"
            tests = CodeTests(
                base=fill(self.tests, row, where, "tests"),
                plus=None if self.tests_plus is None else fill(self.tests_plus, row, where, "tests_plus"),
                before=fill(self.setup, row, where, "setup"),
                timeout_s=self.timeout_s,
            )
        return Task(
            user=fill(self.prompt, row, where),
            system=self.system,
            chat=self.chat,
            thinking=self.thinking,
            group="" if self.group is None else take_text(row, "group", self.group, where),
            answer=Answer(
                text=expected,
                check=self.check,
                pattern=self.pattern,
                tests=tests,
                opening=fill(self.opening, row, where, "opening"),
                max_new_tokens=self.max_new_tokens,
                stop=tuple(self.stop),
            ),
        )


def _fields(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a row; a list of texts becomes lines, and each of its texts a field such as ``field.0``."""
    lists = {key: value for key, value in row.items() if _is_list_of_texts(value)}
    parts = {f"{key}.{index}": text for key, texts in lists.items() for index, text in enumerate(texts)}
    lines = {key: "\n".join(texts) for key, texts in lists.items()}
    return {**row, **parts, **lines}


def _is_list_of_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)
