"""The expected answer to a prompt, and the check that compares a generated text with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: The check of a text. ``number``: the number after ``####``, or else the last number, equals that of the right answer,
#: as in GSM8K. ``exact``: the text begins with the words of the right answer. ``choice``: the right choice is named
#: before any other choice. ``math``: the mathematical expressions are equal (math-verify). ``regex``: the last match of
#: a pattern, or the first group of that match, is the right answer. ``rouge``: ROUGE-L F1 with stemming. ``code``: the
#: code passes its tests.
Check = Literal["number", "exact", "choice", "math", "regex", "rouge", "code"]


@dataclass(frozen=True)
class CodeTests:
    """The tests of generated code: Python source that raises an exception if the code is wrong."""

    base: str  #: the tests to run after the code; empty for none
    plus: str | None = None  #: additional tests, whose result is recorded separately; None for none
    before: str = ""  #: source to run before the code, such as imports
    timeout_s: float = 30.0  #: the time limit of each set of tests, in seconds


@dataclass(frozen=True)
class Answer:
    """The expected answer to a prompt."""

    text: str  #: the right answer
    choices: tuple[str, ...] = ()  #: all choices in order, the right answer included; empty if the question is open
    check: Check | None = None  #: the check of a text; None to choose it by the answer
    pattern: str | None = None  #: the pattern of the check ``regex``
    tests: CodeTests | None = None  #: the tests of the check ``code``
    opening: str = ""  #: the beginning of the answer, which is the end of the prompt
    max_new_tokens: int | None = None  #: the most tokens of the answer; None for the objective's limit
    stop: tuple[str, ...] | None = None  #: texts at which the answer ends; None for those of the objective
