"""Answers of several models to the same items, and the items with the largest loss of score."""

from __future__ import annotations

import pytest

from raysearch.generation.examples import examples, worst
from raysearch.generation.score import AnswerScore, ScoredText


def text(content: str, value: float, failure: str | None = None, cut_off: bool = False) -> ScoredText:
    return ScoredText(content, len(content.split()), cut_off, AnswerScore(value, failure))


DENSE = [text("1", 1), text("2", 1), text("so 3", 0.5), text("no", 0)]
PRUNED = [text("1", 1), text("(2", 0, "parenthesis"), text("3 3 3", 0.25, None, True), text("4", 1)]


def test_the_worst_items_fall_most() -> None:
    rows = examples(["1", "2", "3", "4"], DENSE, PRUNED)
    assert [row["item"] for row in worst(rows, 5)] == [1, 2]
    assert [row["item"] for row in worst(rows, 1)] == [1]


def test_a_row_has_every_model_beside_the_right_answer() -> None:
    (row,) = examples(["2"], DENSE[1:2], PRUNED[1:2], recovered=[text("2.", 1)])
    assert row == {
        **{"item": 0, "expected": "2", "dense": "2", "dense_score": 1, "text": "(2", "score": 0},
        **{"failure": "parenthesis", "cut_off": False, "recovered": "2.", "recovered_score": 1},
    }


def test_answers_of_other_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"zip\(\)"):
        examples(["1"], [], [])
