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
    """The tests of generated code, as Python that fails by an exception."""

    base: str  #: run after the code; empty for none
    plus: str | None = None  #: more tests, told apart; None where there are none
    before: str = ""  #: run before the code: imports
    timeout_s: float = 30.0  #: of each set of tests


@dataclass(frozen=True)
class Answer:
    """The expected answer to a prompt."""

    text: str  #: the right answer
    choices: tuple[str, ...] = ()  #: all among which it is the right one, in order; empty where the question is open
    check: Check | None = None  #: how a text is checked; None if that follows from the answer
    pattern: str | None = None  #: of a check by ``regex``
    tests: CodeTests | None = None  #: of a check of ``code``
    opening: str = ""  #: the beginning of the answer that stands at the end of the prompt
    max_new_tokens: int | None = None  #: the most tokens of this answer; None if the objective says it
    stop: tuple[str, ...] | None = None  #: texts at which it ends; None if the objective says it
