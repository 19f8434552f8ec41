"""The expected answer to a prompt: what a generated text is checked against, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: How a text is checked. ``number``: the number after ``####``, or else the last one, equals that of the right answer,
#: as in GSM8K. ``exact``: the text begins with the right answer's words. ``choice``: the right choice is named before
#: any other. ``math``: the mathematical expressions are equal (math-verify). ``regex``: a pattern's first group, or the
#: whole of what it finds, is the right answer; the last place found counts. ``rouge``: ROUGE-L F1 with stemming.
#: ``code``: the code passes its tests.
Check = Literal["number", "exact", "choice", "math", "regex", "rouge", "code"]


@dataclass(frozen=True)
class CodeTests:
    """The tests of generated code, as Python that fails by an exception.

    Args:
        base: Run after the code; empty for none.
        plus: More tests, told apart; None where there are none.
        before: Run before the code: imports.
        timeout_s: Seconds of each set of tests.
    """

    base: str
    plus: str | None = None
    before: str = ""
    timeout_s: float = 30.0


@dataclass(frozen=True)
class Answer:
    """The expected answer of a prompt.

    Args:
        text: The right answer.
        choices: All answers among which it is the right one, in order; empty where the question is open.
        check: How a text is checked; None if that follows from the answer.
        pattern: Of a check by ``regex``.
        tests: Of a check of ``code``.
        opening: The beginning of the answer that stands at the end of the prompt.
        max_new_tokens: The most tokens of this answer; None if the objective says it.
        stop: Texts at which it ends; None if the objective says it.
    """

    text: str
    choices: tuple[str, ...] = ()
    check: Check | None = None
    pattern: str | None = None
    tests: CodeTests | None = None
    opening: str = ""
    max_new_tokens: int | None = None
    stop: tuple[str, ...] | None = None
