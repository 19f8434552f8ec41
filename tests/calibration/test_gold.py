from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from raysearch.calibration.gold import AnswerAs, find_gold
from raysearch.errors import UserError

WHERE = "row 3 of data.path=a.jsonl data.answer=answer"


@pytest.mark.parametrize(
    ("answer", "choices", "labels", "answer_as", "gold"),
    [
        (0, ["a", "b"], None, "auto", 0),
        (1, ["a", "b"], None, "auto", 1),
        ("1", ["a", "b"], None, "auto", 1),
        (" 1 ", ["a", "b"], None, "auto", 1),
        (False, ["no", "yes"], None, "auto", 0),
        (True, ["no", "yes"], None, "auto", 1),
        ("C", ["x", "y", "z"], None, "auto", 2),
        ("b", ["x", "y", "z"], None, "auto", 1),
        ("cat", ["dog", "cat "], None, "auto", 1),
        ("12", ["3", "12", "5"], None, "auto", 1),
        ("a", ["a", "b"], None, "auto", 0),
        ("3", ["1", "2", "3", "4"], None, "text", 2),
        ("3", ["1", "2", "3", "4"], None, "index", 3),
        ("b", ["b", "a"], None, "text", 0),
        (2, [5, 7, 9], None, "auto", 2),
        (7, [5, 7, 9], None, "auto", 1),
        (2, ["1", "2", "3"], None, "auto", 2),
        ("B", ["x", "y"], ["A", "B"], "auto", 1),
        ("2", ["x", "y"], ["1", "2"], "auto", 1),
        (2, ["x", "y"], [1, 2], "auto", 1),
        (" B", ["x", "y"], ["A", "B", "C"], "auto", 1),
        ("true", ["x", "y"], [False, True], "auto", 1),
        (True, ["x", "y"], ["true", "false"], "auto", 0),
    ],
)
def test_reads_an_answer(
    answer: Any, choices: Sequence[Any], labels: Sequence[Any] | None, answer_as: AnswerAs, gold: int
) -> None:
    assert find_gold(answer, choices, labels, answer_as, WHERE) == gold


@pytest.mark.parametrize(
    ("answer", "choices", "labels", "answer_as", "message"),
    [
        (2, ["a", "b"], None, "auto", "=2 is out of range of its 2 choices, counted from 0; mend the row, or where "
         "they are counted from 1, set data.labels=[1,2]"),
        (-1, ["a", "b"], None, "auto", "=-1 is none of its choices; choose one of: a, b"),
        ("", ["a", "b"], None, "auto", " is empty; fill it in, or leave the row out"),
        (None, ["a", "b"], None, "auto", " is empty; fill it in"),
        ("cats", ["dog", "cat"], None, "auto", "=cats is none of its choices; did you mean 'cat'? or name another"),
        (["a"], ["a", "b"], None, "auto", "=['a'] is none of its choices"),
        ("x", ["x", "x"], None, "text", "=x is the text of choices [0, 1]; leave the row out, or give its number"),
        ("2", ["1", "2", "3"], None, "auto", "=2 is the text of choice 1 and the number of choice 2, counted from 0; "
         "say which with data.answer_as=text or data.answer_as=index"),
        ("cat", ["dog", "cat"], None, "index", "=cat is none of its choices"),
        ("E", ["x", "y"], ["A", "B"], "auto", "=E is none of the labels A, B; mend the row, or set data.labels=[…]"),
        ("C", ["x", "y"], ["A", "B", "C"], "auto", "=C is label 3, but there are 2 choices; mend the row"),
    ],
)  # fmt: skip
def test_names_what_means_no_choice(
    answer: Any, choices: Sequence[Any], labels: Sequence[Any] | None, answer_as: AnswerAs, message: str
) -> None:
    with pytest.raises(UserError) as caught:
        find_gold(answer, choices, labels, answer_as, WHERE)
    assert str(caught.value).startswith(WHERE + message)
