from __future__ import annotations

import collections
import random
from typing import Any, Literal

import pytest

from raysearch.calibration.formats.base import Item
from raysearch.calibration.items import DrawnItems, ItemOptions, Located, draw_items
from raysearch.errors import UserError
from tests.sentences import Sentences


def items(**sizes: int) -> list[Located]:
    """As many different items of each group; ``_`` for none."""
    return [
        Located(f"row {group} {number}", Item(f"{group} {number}", ("a", "b"), 0, group=group.strip("_")))
        for group, size in sizes.items()
        for number in range(size)
    ]


def draw(samples: list[Located], n: int | Literal["all"], **options: Any) -> DrawnItems:
    return draw_items(iter(samples), ItemOptions(samples=n, **options))


def prompts(drawn: DrawnItems) -> list[str]:
    return [located.sample.prompt for located in drawn.samples if isinstance(located.sample, Item)]


class TestDraw:
    def test_each_item_once(self) -> None:
        drawn = draw(items(_=20), 20)
        assert len(set(prompts(drawn))) == 20
        assert (drawn.rows_read, drawn.duplicates, drawn.groups) == (20, 0, {})

    def test_depends_on_the_seed_and_the_set_but_not_on_the_order(self) -> None:
        samples = items(a=30, b=20)
        shuffled = random.Random(0).sample(samples, len(samples))
        draws = [sorted(prompts(draw(order, 10, seed=1))) for order in (samples, shuffled)]
        assert draws[0] == draws[1]
        assert sorted(prompts(draw(samples, 10, seed=2))) != draws[0]

    def test_sequential_takes_the_first(self) -> None:
        drawn = draw(items(_=20), 3, sampling="sequential", seed=5)
        assert prompts(drawn) == ["_ 0", "_ 1", "_ 2"]

    def test_reads_no_more_of_a_stream_than_it_may(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("raysearch.calibration.items._MOST_ROWS", 50)
        stream = iter(items(_=1000))
        assert draw_items(stream, ItemOptions(samples=40)).rows_read == 50
        assert next(stream).where == "row _ 50"


class TestDuplicates:
    def test_are_left_out_and_counted(self) -> None:
        samples = items(_=5)
        drawn = draw([*samples, *samples, samples[0]], 5)
        assert len(set(prompts(drawn))) == 5
        assert (drawn.rows_read, drawn.duplicates) == (11, 6)

    def test_differ_in_prompt_choices_or_gold(self) -> None:
        different = [
            Item("q", ("a", "b"), 0),
            Item("q", ("a", "b"), 1),
            Item("q", ("a", "c"), 0),
            Item("r", ("a", "b"), 0),
        ]
        assert draw([Located("", item) for item in different], 4).duplicates == 0

    def test_are_told_where_too_few_are_left(self, sentences: Sentences) -> None:
        with sentences.refused(UserError):
            draw(items(_=5) * 3, 6)


class TestBalance:
    def counts(self, drawn: DrawnItems) -> dict[str, int]:
        return dict(collections.Counter(prompt.split()[0] for prompt in prompts(drawn)))

    @pytest.mark.parametrize("sampling", ["random", "sequential"])
    def test_equal(self, sampling: str) -> None:
        drawn = draw(items(a=100, b=7, c=7), 21, sampling=sampling)
        assert self.counts(drawn) == drawn.groups == {"a": 7, "b": 7, "c": 7}

    def test_equal_but_for_what_is_left(self) -> None:
        drawn = draw(items(a=100, b=10, c=10), 11)
        assert sorted(drawn.groups.values()) == [3, 4, 4]
        assert self.counts(drawn) == drawn.groups
        extra = [
            max(draw(items(a=9, b=9, c=9), 4, seed=seed).groups.items(), key=lambda x: x[1])[0] for seed in range(20)
        ]
        assert set(extra) == {"a", "b", "c"}

    def test_proportional(self) -> None:
        drawn = draw(items(a=70, b=20, c=10), 20, balance="proportional")
        assert self.counts(drawn) == drawn.groups == {"a": 14, "b": 4, "c": 2}
        without_duplicates = draw(items(a=10) * 9 + items(b=10), 10, balance="proportional")
        assert without_duplicates.groups == {"a": 5, "b": 5}
        for n in range(1, 31):
            drawn = draw(items(a=17, b=11, c=2), n, balance="proportional")
            assert sum(drawn.groups.values()) == len(drawn.samples) == n

    def test_none(self) -> None:
        draws = [draw(items(a=70, b=20, c=10), 20, balance="none", seed=seed) for seed in range(200)]
        assert all(self.counts(drawn) == {name: n for name, n in drawn.groups.items() if n} for drawn in draws)
        shares = {name: sum(drawn.groups[name] for drawn in draws) / 4000 for name in "abc"}
        assert shares == pytest.approx({"a": 0.7, "b": 0.2, "c": 0.1}, abs=0.02)
        assert len({drawn.groups["c"] for drawn in draws}) > 3, "the shares vary between draws"

    def test_none_takes_the_first_of_all(self) -> None:
        drawn = draw(items(a=3, b=9), 5, balance="none", sampling="sequential")
        assert drawn.groups == {"a": 3, "b": 2}
        assert draw(items(a=9, b=3), 5, balance="none", sampling="sequential").groups == {"a": 5, "b": 0}

    def test_all_are_all_of_each(self) -> None:
        assert draw(items(a=7, b=2), "all").groups == {"a": 7, "b": 2}
        assert draw(items(a=7, b=7), "all", at_most=6).groups == {"a": 3, "b": 3}

    def test_names_a_group_that_is_too_small(self, sentences: Sentences) -> None:
        with sentences.refused(UserError):
            draw(items(a=100, b=5), 20)


def test_no_rows(sentences: Sentences) -> None:
    with sentences.refused(UserError):
        draw([], 1)
