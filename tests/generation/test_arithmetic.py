"""Problems of arithmetic: their form, their answers, their tokens and their draws."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
import pytest

from raysearch.errors import UserError
from raysearch.generation.arithmetic import SHOTS, ArithmeticProblem, draw_problems, encode_probe, read_problems
from tests.conftest import DATA_FOLDER
from tests.sentences import Sentences

PROMPT = """\
Question: What is (4 * 4) * 1? Answer: 16
Question: What is (8 + 3) * 5? Answer: 55
Question: What is (7 + 5) - 6? Answer: 6
Question: What is """


def test_prompts_end_before_the_first_digit() -> None:
    for question, ending, digit in (
        ("(9 + 8) * 2", "(9 + 8) * 2? Answer: ", 3),
        ("(1 - 5) - 6", "(1 - 5) - 6? Answer: -", 1),
        ("(2 - 2) * 7", "(2 - 2) * 7? Answer: ", 0),
    ):
        problem = ArithmeticProblem.of(question)
        assert (problem.prompt, problem.digit) == (PROMPT + ending, digit)


def test_problems_are_drawn_once_and_are_no_worked_examples(sentences: Sentences) -> None:
    problems = draw_problems(6558, seed=0)
    assert len({problem.question for problem in problems}) == 6558
    assert not {problem.question for problem in problems} & set(SHOTS)
    assert draw_problems(50, seed=1) == draw_problems(80, seed=1)[:50] != draw_problems(50, seed=2)
    with sentences.refused(UserError):
        draw_problems(6559, seed=0)


@pytest.mark.data
def test_the_rows_of_arithmetic_1dc_are_read_and_their_answers_are_right() -> None:
    text = (DATA_FOLDER / "arithmetic" / "1dc.jsonl").read_text("utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    problems = read_problems(rows, 200, seed=42)
    contexts = pd.Series(dict.fromkeys(row["context"] for row in rows if row["context"][18:29] not in SHOTS))
    expected = pd.Series(list(contexts.index)).sample(200, random_state=42)
    assert [f"Question: What is {problem.question}?\nAnswer:" for problem in problems] == list(expected)
    answers = {row["context"][18:29]: int(row["completion"]) for row in rows}
    assert not [problem for problem in problems if problem.answer != answers[problem.question]]


def test_rows_of_another_form_are_refused(sentences: Sentences) -> None:
    right = {"context": "Question: What is (9 + 8) * 2?\nAnswer:"}
    wrong = {"context": "Question: What is 98 plus 45?\nAnswer:"}
    cases = [
        [right, wrong],
        [right, right],
    ]
    sentences.refused_each(lambda rows: read_problems(rows, 2, 42), cases)


class Letters:
    """A tokenizer of characters; with `pairs`, a space and the character after it are one token."""

    eos_token_id = 1

    def __init__(self, pairs: bool, ends: bool = False) -> None:
        self.pairs = pairs
        self.ends = ends

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        ids = [0]
        place = 0
        while place < len(text):
            is_pair = self.pairs and text[place] == " " and place + 1 < len(text)
            ids.append(1000 + ord(text[place + 1]) if is_pair else ord(text[place]))
            place += 2 if is_pair else 1
        return {"input_ids": [*ids, 1] if self.ends else ids}


def test_a_digit_is_a_token_with_or_without_the_space() -> None:
    positive = ArithmeticProblem.of("(9 + 8) * 2")
    negative = ArithmeticProblem.of("(1 - 5) - 6")
    for ends in (False, True):
        single = Letters(pairs=False, ends=ends)
        paired = Letters(pairs=True, ends=ends)
        assert encode_probe(positive, single).digits == tuple(range(48, 58))
        assert encode_probe(positive, single).ids[-2:] == (ord(":"), ord(" "))
        assert encode_probe(positive, paired).digits == tuple(range(1048, 1058))
        assert encode_probe(positive, paired).ids[-1] == ord(":")
        assert encode_probe(negative, paired).digits == tuple(range(48, 58))
        assert encode_probe(negative, paired).ids[-1] == 1000 + ord("-")


def test_a_tokenizer_without_digits_is_refused(sentences: Sentences) -> None:
    with sentences.refused(UserError):
        encode_probe(ArithmeticProblem.of("(9 + 8) * 2"), lambda text, **_: {"input_ids": [len(text)]})
