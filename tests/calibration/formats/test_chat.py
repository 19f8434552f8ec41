from __future__ import annotations

from typing import Any

import pytest

from raysearch.calibration.formats.base import Dialogue
from raysearch.calibration.formats.chat import ChatFormat
from raysearch.errors import UserError
from tests.cases import assert_refused

WHERE = "row 3 of data.path=a.jsonl"


def test_reads_turns() -> None:
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]}),
        ({}, {"messages": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}]}),
        (
            {"messages": "conversations"},
            {"conversations": [{"role": "user", "content": "hi", "id": 1}, {"from": "assistant", "value": "yo"}]},
        ),
    ]
    for options, row in cases:
        assert ChatFormat(**options).read(row, WHERE) == Dialogue((("user", "hi"), ("assistant", "yo")))


def test_names_the_row_and_the_way_out() -> None:
    cases: list[tuple[Any, str]] = [
        ("hi", f"{WHERE} holds a text in data.messages=messages; write "),
        ([], f"{WHERE} holds an empty list in data.messages=messages; write "),
        (["hi"], f"turn 1 of {WHERE} is no message; write "),
        ([{"role": "user"}], f"turn 1 of {WHERE} is no message; write "),
        ([{"role": "usr", "content": "a"}], f"turn 1 of {WHERE} has the role 'usr'; did you mean 'user'?"),
        ([{"role": ["user"], "content": "a"}], f"turn 1 of {WHERE} has the role ['user']; did you mean 'user'?"),
        (
            [{"role": "user", "content": "a"}, {"role": "assistant", "content": " "}],
            f"turn 2 of {WHERE} has no text; f",
        ),
        ([{"role": "user", "content": [{"type": "image"}]}], f"turn 1 of {WHERE} has no text; fill it in, or leave"),
        (
            [{"role": "user", "content": "a"}],
            f"{WHERE} has no turn of the assistant, so nothing is answered; leave the",
        ),
    ]
    assert_refused(lambda messages: ChatFormat().read({"messages": messages}, WHERE), cases)


def test_names_a_missing_field() -> None:
    with pytest.raises(UserError, match=r"row 3 of .* has no data.messages=messages; did you mean 'message'\?"):
        ChatFormat().read({"message": []}, WHERE)
