"""Tasks to write an answer to, in any shape: mathematics, code, summaries, with a check that the data declares."""

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
    """Tasks that are answered by a text.

    A template is a text with fields of the row in braces; a list of texts is a line each, and ``{field.0}`` its first.

    Args:
        prompt: The template of what is asked.
        check: How an answer is checked; see `raysearch.generation.answer.Check`.
        answer: The field of the right answer, a text or a number; None where tests alone decide.
        system: The system prompt.
        opening: The template of the answer's beginning, which is put into the model's mouth.
        chat: Whether it is asked in the model's chat template; None where the model has one.
        thinking: Whether the chat template asks for thinking before the answer; None for its own way.
        pattern: Of a check by ``regex``: what is found last counts, or its first group.
        tests: The template of the tests of a check of ``code``.
        tests_plus: The template of more tests, told apart; None for none.
        setup: The template of what is run before the code.
        timeout_s: Seconds of each set of tests.
        max_new_tokens: The most tokens of an answer.
        stop: Texts at which an answer ends.
        group: The field of the sub-task, to draw from each; None where there is only one.
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
    """Return the fields of a row: a list of texts as lines, and its parts as ``field.0`` and so on."""
    lists = {
        key: value
        for key, value in row.items()
        if isinstance(value, list) and all(isinstance(one, str) for one in value)
    }
    parts = {f"{key}.{place}": one for key, value in lists.items() for place, one in enumerate(value)}
    return {**row, **parts, **{key: "\n".join(value) for key, value in lists.items()}}
