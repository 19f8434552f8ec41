"""All mistakes of a section are reported together, each with its key, its value and a remedy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest
from pydantic import PositiveInt

from raysearch.core.validation import SECTION, UserPath, built_by, checked, validated
from raysearch.errors import UserError
from tests.sentences import Sentences


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


def test_values_fill_the_tree() -> None:
    values = {"part": {"sizes": {"first": 1, "last": 2}, "names": ["a"]}, "double": 2, "text": "x"}
    assert validated(Whole, "", values) == Whole(Part(Range(1, 2), ["a"]), 4, "x")


def test_all_mistakes_are_reported_together(sentences: Sentences) -> None:
    with sentences.refused(UserError) as caught:
        validated(Whole, "", {"part": {"sizes": 0, "nams": ["a"], "names": "a", "file": ""}, "double": 3, "txt": 1})
    assert len(caught.value.sentences) == 7


def test_a_mapping_is_compared_with_the_dataclass_of_a_union_alone(sentences: Sentences) -> None:
    for sizes in ({"first": "1", "lst": 2}, {"first": 2, "last": 1}):
        with sentences.refused(UserError, case=str(sizes)):
            validated(Whole, "", {"part": {"sizes": sizes}, "double": 2, "text": "x"})


def test_earlier_mistakes_are_reported_too_but_not_what_is_missing_because_of_them(sentences: Sentences) -> None:
    earlier = "part=3 is not a section"
    with sentences.refused(UserError, case="another mistake"):
        validated(Whole, "", {"double": 3, "text": "x"}, mistakes=[earlier], absent={"part"})
    with sentences.refused(UserError, case="no other mistake"):
        validated(Whole, "", {"double": 2, "text": "x"}, mistakes=[earlier], absent={"part"})
    with sentences.refused(UserError, case="a contradiction"):
        validated(Whole, "", {"part": {}, "double": 2, "text": "wrong"}, mistakes=["a"])


@pytest.mark.parametrize(
    ("expected", "value"),
    [
        (int, "3"),
        (str, 7),
        (list[list[int]], [1, 2]),
        (list[list[int]], "{3,5}"),
        (list[list[int]], ["1..3"]),
        (Literal["random", "whole"], "randm"),
        (float, float("nan")),
    ],
)
def test_a_sentence_has_the_remedy(expected: Any, value: Any, sentences: Sentences) -> None:
    with sentences.refused(UserError):
        checked(expected, "key", value)
