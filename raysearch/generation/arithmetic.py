"""Problems of one-digit arithmetic, as questions whose next token is the first digit of the answer.

Source: figure 4a and section A.4 of `On the Limits of Layer Pruning for Generative Reasoning`. Its problems are rows of
EleutherAI's ``arithmetic_1dc``, which are drawn at random from all of this form, as `draw_problems` does.
"""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from raysearch.errors import UserError

#: The worked examples of every prompt, never drawn as problems.
SHOTS = ("(4 * 4) * 1", "(8 + 3) * 5", "(7 + 5) - 6")

_PROBLEM = re.compile(r"\(([1-9]) ([-+*]) ([1-9])\) ([-+*]) ([1-9])")
_DIGITS, _OPERATIONS = range(1, 10), {"+": operator.add, "-": operator.sub, "*": operator.mul}


@dataclass(frozen=True)
class Problem:
    """A problem of one-digit arithmetic, such as ``(7 + 5) - 6``, and its value."""

    question: str
    answer: int

    @classmethod
    def of(cls, question: str) -> Problem:
        """Return the problem of a question of the form ``(a + b) * c``."""
        parts = _PROBLEM.fullmatch(question)
        assert parts is not None, question
        a, first, b, second, c = parts.groups()
        return cls(question, _OPERATIONS[second](_OPERATIONS[first](int(a), int(b)), int(c)))

    @property
    def prompt(self) -> str:
        """The worked examples and the question, up to the first digit of the answer, a minus sign included."""
        lines = [f"{_ask(shot)} {Problem.of(shot).answer}" for shot in SHOTS]
        return "\n".join([*lines, f"{_ask(self.question)} {'-' if self.answer < 0 else ''}"])

    @property
    def digit(self) -> int:
        """The first digit of the answer."""
        return int(str(abs(self.answer))[0])


@dataclass(frozen=True)
class Probe:
    """A problem as tokens: its prompt, the token of each digit that may follow, 0 … 9, and the right digit."""

    ids: tuple[int, ...]
    digits: tuple[int, ...]
    digit: int


def draw_problems(n: int, seed: int) -> list[Problem]:
    """Return `n` distinct problems, drawn at random from all 6,558 that are not worked examples."""
    parts = itertools.product(_DIGITS, _OPERATIONS, _DIGITS, _OPERATIONS, _DIGITS)
    every = [f"({a} {first} {b}) {second} {c}" for a, first, b, second, c in parts]
    order = np.random.default_rng(seed).permutation(len(every)).tolist()
    return _first([every[at] for at in order if every[at] not in SHOTS], n)


def read_problems(rows: Iterable[Mapping[str, Any]], n: int, seed: int) -> list[Problem]:
    """Return `n` problems of rows of EleutherAI's ``arithmetic_1dc``, drawn as pandas' ``sample`` draws them.

    The worked examples are left out before drawing, and so are repeated rows.

    Args:
        rows: With ``context``, ``Question: What is (9 + 8) * 2?`` and ``Answer:`` on a line each.
        n: How many; refused if there are fewer.
        seed: ``random_state`` of ``sample``; the paper's is 42.
    """
    import pandas as pd

    questions = []
    for number, row in enumerate(rows, start=1):
        context = " ".join(str(row.get("context")).split())
        question = context.removeprefix("Question: What is ").removesuffix("? Answer:")
        if not _PROBLEM.fullmatch(question):
            raise UserError(
                f"assess.probe.file has {context[:60]!r} as context of row {number}; use rows of arithmetic_1dc, "
                "such as 'Question: What is (9 + 8) * 2? Answer:'"
            )
        questions.append(question)
    questions = [question for question in dict.fromkeys(questions) if question not in SHOTS]
    drawn = pd.Series(questions, dtype=object).sample(min(n, len(questions)), random_state=seed)
    return _first(drawn.tolist(), n)


def encode_probe(problem: Problem, tokenizer: Any) -> Probe:
    """Return a problem as tokens: a digit may be a token of its own, or one with the space before it."""
    rows = [tokenizer(f"{problem.prompt}{digit}", add_special_tokens=True)["input_ids"] for digit in range(10)]
    end = getattr(tokenizer, "eos_token_id", None)
    rows = [row[:-1] if len(row) > 1 and row[-1] == end else row for row in rows]
    heads, digits = {tuple(row[:-1]) for row in rows}, tuple(row[-1] for row in rows)
    if len(heads) != 1 or len(set(digits)) != 10:
        raise UserError(
            "assess.probe.enabled=true needs a tokenizer with a token for each digit after 'Answer: ', which this "
            "model's has not; use assess.probe.enabled=false"
        )
    return Probe(heads.pop(), digits, problem.digit)


def _first(questions: list[str], n: int) -> list[Problem]:
    if n > len(questions):
        raise UserError(
            f"assess.probe.items={n} is more than the {len(questions)} problems that there are; use at most those"
        )
    return [Problem.of(question) for question in questions[:n]]


def _ask(question: str) -> str:
    return f"Question: What is {question}? Answer:"
