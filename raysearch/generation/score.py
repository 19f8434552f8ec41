"""The score of a generated answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Score:
    """The worth of an answer.

    Args:
        value: 1 where it is right, 0 where it is wrong, or between: an F1.
        failure: Why it is wrong, as a class (``parenthesis``, ``undefined name`` …); None if it is right, or where a
            kind of check has no classes.
        base: For code with two sets of tests, whether it passes the first alone; None elsewhere.
    """

    value: float
    failure: str | None = None
    base: bool | None = None


@dataclass(frozen=True)
class ScoredText:
    """A generated answer and what it is worth.

    Args:
        text: The answer, without its opening and without what ends it.
        n_tokens: Tokens that were generated.
        cut_off: Whether it ends because of the limit of tokens.
        score: What it is worth.
    """

    text: str
    n_tokens: int
    cut_off: bool
    score: Score
