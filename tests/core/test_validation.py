"""All mistakes of a section are reported together, each with its key, its value and a remedy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest
from pydantic import PositiveInt

from raysearch.core.validation import SECTION, UserPath, built_by, checked, validated
from raysearch.errors import UserError


@dataclass(frozen=True)
class Range:
    first: int
    last: int

    def __post_init__(self) -> None:
        if self.first > self.last:
            raise UserError("part.sizes runs backwards; exchange the ends")


@dataclass(frozen=True)
class Part:
    sizes: PositiveInt | Literal["auto"] | Range = "auto"
    names: list[str] = field(default_factory=list)
    file: UserPath | None = None


def _double(value: Any) -> int:
    if value == 3:
        raise UserError("double=3 is odd; use 2 or 4")
    return 2 * int(value)


@dataclass(frozen=True)
class Whole:
    part: Annotated[Part, SECTION]
    double: Annotated[int, built_by(_double)]
    text: str

    def __post_init__(self) -> None:
        if self.text == "wrong":
            raise UserError("text=wrong contradicts the rest; use another")


def sentences(values: dict[str, Any], **others: Any) -> list[str]:
    with pytest.raises(UserError) as caught:
        validated(Whole, "", values, **others)
    return [*caught.value.sentences]


def test_values_fill_the_tree() -> None:
    values = {"part": {"sizes": {"first": 1, "last": 2}, "names": ["a"]}, "double": 2, "text": "x"}
    assert validated(Whole, "", values) == Whole(Part(Range(1, 2), ["a"]), 4, "x")


def test_all_mistakes_are_reported_together() -> None:
    assert sentences({"part": {"sizes": 0, "nams": ["a"], "names": "a", "file": ""}, "double": 3, "txt": 1}) == [
        "part.file= is empty; give a path",
        "part.nams is not a key of this configuration; did you mean 'names'?",
        "double=3 is odd; use 2 or 4",
        "text has no value; give text=…",
        "txt is not a key of this configuration; did you mean 'text'?",
        "part.sizes=0 should be greater than 0 or 'auto' or a valid dictionary",
        "part.names=a should be a valid list; write part.names=[a]",
    ]


def test_a_mapping_is_compared_with_the_dataclass_of_a_union_alone() -> None:
    whole = {"double": 2, "text": "x"}
    assert sentences({"part": {"sizes": {"first": "1", "lst": 2}}, **whole}) == [
        "part.sizes.last has no value; give part.sizes.last=…",
        "part.sizes.lst is not a key of this configuration; did you mean 'last'?",
        "part.sizes.first=1 should be a valid integer; drop the quotes around it: write part.sizes.first=1",
    ]
    assert sentences({"part": {"sizes": {"first": 2, "last": 1}}, **whole}) == [
        "part.sizes runs backwards; exchange the ends"
    ]


def test_earlier_mistakes_are_reported_too_but_not_what_is_missing_because_of_them() -> None:
    earlier = "part=3 is not a section"
    assert sentences({"double": 3, "text": "x"}, mistakes=[earlier], absent={"part"}) == [
        earlier,
        "double=3 is odd; use 2 or 4",
    ]
    assert sentences({"double": 2, "text": "x"}, mistakes=[earlier], absent={"part"}) == [earlier]
    assert sentences({"part": {}, "double": 2, "text": "wrong"}, mistakes=["a"]) == [
        "a",
        "text=wrong contradicts the rest; use another",
    ]


@pytest.mark.parametrize(
    ("expected", "value", "sentence"),
    [
        (int, "3", "key=3 should be a valid integer; drop the quotes around it: write key=3"),
        (str, 7, "key=7 should be a valid string; where text reads like something else, quote it twice: key=\"'7'\""),
        (list[list[int]], [1, 2], "key=[1,2] should be a valid list; write key=[[1,2]]"),
        (list[list[int]], "{3,5}", "key={3,5} should be a valid list; write key=[[3,5]]"),
        (list[list[int]], ["1..3"], "key=[1..3] should be a valid list; write key=[[1,2,3]]"),
        (Literal["random", "whole"], "randm", "key=randm should be 'random' or 'whole'; did you mean 'random'?"),
        (float, float("nan"), "key=NaN should be a finite number"),
    ],
)
def test_a_sentence_has_the_remedy(expected: Any, value: Any, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        checked(expected, "key", value)
    assert str(caught.value) == sentence
