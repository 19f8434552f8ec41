"""Problems of one-digit arithmetic, as questions whose next token is the first digit of the answer.

Source: figure 4a and section A.4 of `On the Limits of Layer Pruning for Generative Reasoning`. Its problems are rows of
EleutherAI's ``arithmetic_1dc``, which were drawn at random from all problems of this form, like those of
`draw_problems`.
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

#: The worked examples of every prompt. They are never drawn as problems.
SHOTS = ("(4 * 4) * 1", "(8 + 3) * 5", "(7 + 5) - 6")

_PROBLEM = re.compile(r"\(([1-9]) ([-+*]) ([1-9])\) ([-+*]) ([1-9])")
_DIGITS = range(1, 10)
_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


@dataclass(frozen=True)
class ArithmeticProblem:
    """A problem of one-digit arithmetic, such as ``(7 + 5) - 6``, and its value."""

    question: str
    answer: int

    @classmethod
    def of(cls, question: str) -> ArithmeticProblem:
        """Return the problem of a question of the form ``(a + b) * c``."""
        parts = _PROBLEM.fullmatch(question)
        assert parts is not None, question
        a, first, b, second, c = parts.groups()
        return cls(question, _OPERATIONS[second](_OPERATIONS[first](int(a), int(b)), int(c)))

    @property
    def prompt(self) -> str:
        """The worked examples, the question, and the minus sign of a negative answer: all before the first digit."""
        lines = [f"{_ask(shot)} {ArithmeticProblem.of(shot).answer}" for shot in SHOTS]
        return "\n".join([*lines, f"{_ask(self.question)} {'-' if self.answer < 0 else ''}"])

    @property
    def digit(self) -> int:
        """The first digit of the answer."""
        return int(str(abs(self.answer))[0])


@dataclass(frozen=True)
class Probe:
    """A problem as tokens."""

    ids: tuple[int, ...]  #: the prompt
    digits: tuple[int, ...]  #: the tokens of the digits 0 … 9 after the prompt
    digit: int  #: the right digit


def draw_problems(n: int, seed: int) -> list[ArithmeticProblem]:
    """Return distinct problems, drawn at random from all 6,558 problems that are not worked examples.

    Args:
        n: The number of problems.
        seed: The seed of the draw.

    Returns:
        The problems, in the order of the draw.

    Raises:
        UserError: There are fewer than `n` problems.
    """
    parts = itertools.product(_DIGITS, _OPERATIONS, _DIGITS, _OPERATIONS, _DIGITS)
    questions = [f"({a} {first} {b}) {second} {c}" for a, first, b, second, c in parts]
    order = np.random.default_rng(seed).permutation(len(questions)).tolist()
    return _first([questions[index] for index in order if questions[index] not in SHOTS], n)


def read_problems(rows: Iterable[Mapping[str, Any]], n: int, seed: int) -> list[ArithmeticProblem]:
    """Return problems from rows of EleutherAI's ``arithmetic_1dc``, drawn by pandas' ``sample``.

    Worked examples and repeated rows are removed before the draw.

    Args:
        rows: Rows with a field ``context``: the lines ``Question: What is (9 + 8) * 2?`` and ``Answer:``.
        n: The number of problems.
        seed: ``random_state`` of ``sample``; the paper's is 42.

    Returns:
        The problems, in the order of the draw.

    Raises:
        UserError: A row has another form, or there are fewer than `n` problems.
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


def encode_probe(problem: ArithmeticProblem, tokenizer: Any) -> Probe:
    """Return a problem as tokens. The token of a digit may include the space before the digit.

    Args:
        problem: The problem.
        tokenizer: A transformers tokenizer.

    Returns:
        The token ids of the prompt and of the ten digits, and the right digit.

    Raises:
        UserError: The tokenizer does not have a token for each digit.
    """
    rows = [tokenizer(f"{problem.prompt}{digit}", add_special_tokens=True)["input_ids"] for digit in range(10)]
    end = getattr(tokenizer, "eos_token_id", None)
    rows = [row[:-1] if len(row) > 1 and row[-1] == end else row for row in rows]
    prompts = {tuple(row[:-1]) for row in rows}
    digits = tuple(row[-1] for row in rows)
    if len(prompts) != 1 or len(set(digits)) != 10:
        raise UserError(
            "assess.probe.enabled=true needs a tokenizer with a token for each digit after 'Answer: ', and this "
            "model's tokenizer has none; use assess.probe.enabled=false"
        )
    return Probe(prompts.pop(), digits, problem.digit)


def _first(questions: list[str], n: int) -> list[ArithmeticProblem]:
    if n > len(questions):
        raise UserError(
            f"assess.probe.items={n} is more than the {len(questions)} problems that there are; use {len(questions)} "
            "or less"
        )
    return [ArithmeticProblem.of(question) for question in questions[:n]]


def _ask(question: str) -> str:
    return f"Question: What is {question}? Answer:"
