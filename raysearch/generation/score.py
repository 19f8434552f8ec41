"""The score of a generated answer."""

from __future__ import annotations

from dataclasses import dataclass

from raysearch.generation.prompt import Written


@dataclass(frozen=True)
class AnswerScore:
    """The score of an answer."""

    value: float  #: 1 if the answer is right, 0 if it is wrong; an F1 lies between
    #: The class of the failure (``parenthesis``, ``undefined name`` …); None if the answer is right, or is not code.
    failure: str | None = None
    base: bool | None = None  #: for code with two sets of tests, whether it passes the first set; else None


@dataclass(frozen=True)
class ScoredText(Written):
    """A generated answer, without its opening, and its score."""

    score: AnswerScore
