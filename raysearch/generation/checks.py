"""Checks a generated text against the expected answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Literal

from raysearch.generation import scoring
from raysearch.generation.answer import Answer, Check
from raysearch.generation.score import Score

#: As `Check`; ``auto``: as the data says, else ``choice`` where there are choices, ``number`` where the right answer
#: has ``####``, and ``exact`` where not.
Match = Check | Literal["auto"]

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_MARKED = re.compile(rf"(?<!#)####\s*\\?[$€£]?({_NUMBER.pattern})")
_HEADING = re.compile(r"####\s*(\d+)[.):][ \t]+\S.*\n\s*\S")  # "#### 1. Add", and text below it


def check_of(answer: Answer, match: Match = "auto") -> Check:
    """Return how an answer is checked."""
    if match != "auto":
        return match
    return answer.check or ("choice" if answer.choices else "number" if "####" in answer.text else "exact")


def score_answers(
    texts: Sequence[str], answers: Sequence[Answer], match: Match = "auto", workers: int | None = None
) -> list[Score]:
    """Score texts; `workers` pieces of code run at once, or for None as many as there are processors.

    Checks of code run it: the caller has the user's permission.
    """
    rows = [(text, answer, check_of(answer, match)) for text, answer in zip(texts, answers, strict=True)]
    codes = [scoring.extract_code(text, answer.opening) for text, answer, check in rows if check == "code"]
    tests = [answer.tests for _, answer, check in rows if check == "code" and answer.tests is not None]
    of_codes = iter(scoring.score_codes(codes, tests, workers) if codes else ())
    return [next(of_codes) if row[2] == "code" else _score(*row) for row in rows]


def _score(text: str, answer: Answer, check: Check) -> Score:
    match check:
        case "math":
            return scoring.score_math(text, answer.text)
        case "rouge":
            return scoring.score_rouge(text, answer.text)
        case "regex":
            assert answer.pattern is not None, "the data has given it"
            return scoring.score_regex(text, answer.pattern, answer.text)
        case "number":
            expected = _number(answer.text)
            right = expected is not None and _number(text) == expected
        case "exact":
            read = _reader([answer.text])
            words = read(answer.text)
            right = read(text)[: len(words)] == words
        case "choice":
            read = _reader(answer.choices)
            right = _first_named(read(text), [*map(read, answer.choices)]) == read(answer.text)
        case "code":
            raise AssertionError("code is run by the caller")
    return Score(float(right))


def _number(text: str) -> float | None:
    """Return the first number that directly follows ``####``, or else the last one; None if there is none.

    Headings that are numbered from 1 on are no answers.
    """
    step = 1
    for marked in _MARKED.finditer(text):
        heading = _HEADING.match(text, marked.start())
        if heading is None or int(heading[1]) != step:
            return _value(marked[1])
        step += 1
    numbers = _NUMBER.findall(text)
    return _value(numbers[-1]) if numbers else None


def _value(number: str) -> float:
    return float(number.replace(",", ""))


def _words(text: str) -> list[str]:
    """Return the words and numbers, without case and punctuation."""
    return re.findall(r"-?\d[\d.,]*\d|-?\d|[^\W\d_]+", text.casefold())


def _signs(text: str) -> list[str]:
    """Return the words and numbers as they are, and every sign."""
    return re.findall(r"\w+|[^\w\s]", text)


def _reader(answers: Sequence[str]) -> Callable[[str], list[str]]:
    """Return how texts are read to compare them with answers: by signs where words do not tell those apart."""
    words = {tuple(_words(answer)) for answer in answers}
    return _signs if () in words or len(words) < len({*answers}) else _words


def _first_named(words: list[str], choices: Sequence[list[str]]) -> list[str] | None:
    """Return the choice that is named first; of several at the same place the longest."""
    named = sorted(choices, key=len, reverse=True)
    starts = range(len(words))
    return next((choice for start in starts for choice in named if words[start : start + len(choice)] == choice), None)
