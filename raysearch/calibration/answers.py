"""Whether a generated text gives the right answer."""

from __future__ import annotations

import re
from typing import Literal

from raysearch.calibration.batch import Answer

#: How a text is checked. ``number``: the number after ``####``, or else the last one, is that of the right answer, as
#: in GSM8K. ``exact``: the text begins with the right answer's words. ``choice``: of all choices the right one is named
#: first. ``auto``: ``choice`` where there are choices, ``number`` where the right answer has ``####``, else ``exact``.
Match = Literal["auto", "number", "exact", "choice"]

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def is_right(text: str, answer: Answer, match: Match = "auto") -> bool:
    """Checks a text.

    Args:
        text: What was generated.
        answer: What is expected.
        match: How it is checked.
    """
    if match == "auto":
        match = "choice" if answer.choices else "number" if "####" in answer.text else "exact"
    if match == "number":
        expected = _number(answer.text)
        return expected is not None and _number(text) == expected
    if match == "exact":
        return _words(text)[: len(_words(answer.text))] == _words(answer.text)
    return _first_named(_words(text), answer.choices) == _words(answer.text)


def _number(text: str) -> float | None:
    """The first number after ``####``, or else the last one; None if there is none."""
    _, marked, after = text.partition("####")
    numbers = _NUMBER.findall(after if marked else text)
    return float(numbers[0 if marked else -1].replace(",", "")) if numbers else None


def _words(text: str) -> list[str]:
    """The text's words and numbers, whatever their case and the punctuation between them."""
    return re.findall(r"-?\d[\d.,]*\d|-?\d|[^\W\d_]+", text.casefold())


def _first_named(words: list[str], choices: tuple[str, ...]) -> list[str] | None:
    """The choice that is named first; the longest of those named there."""
    named = sorted((_words(choice) for choice in choices), key=len, reverse=True)
    starts = range(len(words))
    return next((choice for start in starts for choice in named if words[start : start + len(choice)] == choice), None)
