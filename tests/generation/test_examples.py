"""Answers side by side, and the items that lose most."""

from __future__ import annotations

import pytest

from raysearch.generation.examples import examples, side_by_side, worst
from raysearch.generation.score import Score, ScoredText


def text(words: str, value: float, failure: str | None = None, cut_off: bool = False) -> ScoredText:
    return ScoredText(words, len(words.split()), cut_off, Score(value, failure))


ITEMS = examples(
    ["1", "2", "3", "4"],
    {
        "dense": [text("1", 1), text("2", 1), text("so 3", 0.5), text("no", 0)],
        "pruned": [text("1", 1), text("(2", 0, "parenthesis"), text("3 3 3", 0.25, None, True), text("4", 1)],
    },
    ["one?", "two?", "three?", "four?"],
)


def test_the_worst_items_fall_most() -> None:
    assert [one.item for one in worst(ITEMS, 5)] == [1, 2]
    assert [one.item for one in worst(ITEMS, 1)] == [1]


def test_a_table_has_every_model_beside_the_right_answer() -> None:
    assert side_by_side(ITEMS[:3]) == [
        ("item", "prompt", "right answer", "dense", "pruned"),
        ("0", "one?", "1", "1 [1]", "1 [1]"),
        ("1", "two?", "2", "2 [1]", "(2 [0: parenthesis]"),
        ("2", "three?", "3", "so 3 [0.5]", "3 3 3 [0.25: cut off]"),
    ]
    assert side_by_side([]) == [("item", "prompt", "right answer")]


def test_long_texts_keep_beginning_and_end() -> None:
    (long,) = examples(["c"], {"dense": [text("", 0)]}, ["a" * 100 + "b" * 100])
    assert side_by_side([long], 23)[1] == ("0", f"{'a' * 10} … {'b' * 10}", "c", "[0]")


def test_answers_of_other_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"zip\(\)"):
        examples(["1"], {"dense": [], "pruned": []})
