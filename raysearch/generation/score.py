"""The score of a generated answer."""

from __future__ import annotations

from dataclasses import dataclass

from raysearch.generation.prompt import Written


@dataclass(frozen=True)
class Score:
    """The worth of an answer."""

    value: float  #: 1 where it is right, 0 where it is wrong, or between: an F1
    #: Why it is wrong, as a class (``parenthesis``, ``undefined name`` …); None if it is right, or without classes.
    failure: str | None = None
    base: bool | None = None  #: for code with two sets of tests, whether it passes the first alone; None elsewhere


@dataclass(frozen=True)
class ScoredText(Written):
    """A generated answer, without its opening, and what it is worth."""

    score: Score
