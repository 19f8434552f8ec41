"""Checks a generated text against the expected answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Literal

from raysearch.generation import scoring
from raysearch.generation.answer import Answer, Check
from raysearch.generation.score import AnswerScore

#: A `Check`, or ``auto``: the check that the data declares, else ``choice`` if there are choices, ``number`` if the
#: right answer has ``####``, and else ``exact``.
Match = Check | Literal["auto"]

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_MARKED = re.compile(rf"(?<!#)####\s*\\?[$€£]?({_NUMBER.pattern})")
_HEADING = re.compile(r"####\s*(\d+)[.):][ \t]+\S.*\n\s*\S")  # "#### 1. Add", and text below it


def check_of(answer: Answer, match: Match = "auto") -> Check:
    """Return the check of an answer.

    Args:
        answer: The expected answer.
        match: The check of all answers, or ``auto``.

    Returns:
        The name of the check, never ``auto``.
    """
    if match != "auto":
        return match
    if answer.check is not None:
        return answer.check
    if answer.choices:
        return "choice"
    return "number" if "####" in answer.text else "exact"


def score_answers(
    texts: Sequence[str], answers: Sequence[Answer], match: Match = "auto", workers: int | None = None
) -> list[AnswerScore]:
    """Return the score of each text.

    The check ``code`` runs the generated code, so the caller must have the user's permission.

    Args:
        texts: The generated texts.
        answers: The expected answer to each prompt.
        match: The check of all answers, or ``auto``.
        workers: The number of programs that run at once; None for the number of processors.

    Returns:
        The scores, in the order of the texts.

    Raises:
        UserError: This machine cannot isolate generated code.
    """
    rows = [(text, answer, check_of(answer, match)) for text, answer in zip(texts, answers, strict=True)]
    codes = [scoring.extract_code(text, answer.opening) for text, answer, check in rows if check == "code"]
    tests = [answer.tests for _, answer, check in rows if check == "code" and answer.tests is not None]
    code_scores = iter(scoring.score_codes(codes, tests, workers) if codes else ())
    return [next(code_scores) if check == "code" else _score(text, answer, check) for text, answer, check in rows]


def _score(text: str, answer: Answer, check: Check) -> AnswerScore:
    match check:
        case "math":
            return scoring.score_math(text, answer.text)
        case "rouge":
            return scoring.score_rouge(text, answer.text)
        case "regex":
            assert answer.pattern is not None, "the format requires a pattern for this check"
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
    return AnswerScore(float(right))


def _number(text: str) -> float | None:
    """Return the first number that directly follows ``####``, else the last number; None if there is no number.

    Numbers of headings, ``#### 1.``, ``#### 2.``, …, are not answers.
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
    """Return the words and numbers in lower case, without punctuation."""
    return re.findall(r"-?\d[\d.,]*\d|-?\d|[^\W\d_]+", text.casefold())


def _signs(text: str) -> list[str]:
    """Return the words and numbers as they are, and every punctuation mark."""
    return re.findall(r"\w+|[^\w\s]", text)


def _reader(answers: Sequence[str]) -> Callable[[str], list[str]]:
    """Return the function that splits texts for comparison: `_signs` if the answers have the same words or none."""
    words = {tuple(_words(answer)) for answer in answers}
    return _signs if () in words or len(words) < len({*answers}) else _words


def _first_named(words: list[str], choices: Sequence[list[str]]) -> list[str] | None:
    """Return the choice that is named first; of several at the same place, the longest; None if no choice is named."""
    longest_first = sorted(choices, key=len, reverse=True)
    for start in range(len(words)):
        for choice in longest_first:
            if words[start : start + len(choice)] == choice:
                return choice
    return None
