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


def test_joins_the_parts_of_a_turn() -> None:
    parts = [{"type": "text", "text": "hi"}, {"type": "text", "text": "you"}]
    turns = [{"role": "user", "content": parts}, {"role": "assistant", "content": parts[:1]}]
    assert ChatFormat().read({"messages": turns}, WHERE) == Dialogue((("user", "hi\nyou"), ("assistant", "hi")))


def test_names_the_row_and_the_way_out() -> None:
    cases: list[tuple[Any, str]] = [
        ("hi", f"{WHERE} holds a text in data.messages=messages; write "),
        ([], f"{WHERE} holds an empty list in data.messages=messages; write "),
        (["hi"], f"turn 1 of {WHERE} is not a message; write "),
        ([{"role": "user"}], f"turn 1 of {WHERE} is not a message; write "),
        (
            [{"role": "usr", "content": "a"}],
            f"turn 1 of {WHERE} has the role 'usr' (did you mean 'user'?); leave the row out, or set",
        ),
        (
            [{"role": ["user"], "content": "a"}],
            f"turn 1 of {WHERE} has the role ['user'] (did you mean 'user'?); leave",
        ),
        (
            [{"role": "user", "content": "a"}, {"role": "assistant", "content": " "}],
            f"turn 2 of {WHERE} has no text; leave",
        ),
        (
            [{"role": "user", "content": [{"type": "image"}]}],
            f"turn 1 of {WHERE} has a part that is not text (image); write ",
        ),
        ([{"role": "user", "content": ["a"]}], f"turn 1 of {WHERE} has a part that is not text (a text); write "),
        ([{"role": "user", "content": []}], f"turn 1 of {WHERE} has no text; leave"),
        (
            [{"role": "user", "content": "a"}],
            f"{WHERE} has no turn of the assistant, so nothing is answered; leave the",
        ),
        (
            [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "tool_calls": [{}]}],
            f"turn 2 of {WHERE} calls a tool, which is not in its text; leave the row out, or set data.unusable=skip",
        ),
    ]
    assert_refused(lambda messages: ChatFormat().read({"messages": messages}, WHERE), cases)
    with pytest.raises(UserError, match=r"row 3 of .* has no data.messages=messages; did you mean 'message'\?"):
        ChatFormat().read({"message": []}, WHERE)


def test_leaves_out_what_it_cannot_use() -> None:
    """Rows of the shape of Dolci, in which some conversations call tools."""
    plain = {"function_calls": None, "functions": None}
    question = {**plain, "role": "user", "content": "user"}
    answer = {**plain, "role": "assistant", "content": "assistant"}
    tool_call = {**answer, "content": None, "function_calls": "search(query='a')"}
    tool_result = {**answer, "role": "environment"}
    usable = [[question, answer], [{**question, "role": "system", "functions": "[]"}, question, answer]]
    unusable = [
        [question, tool_call, tool_result, answer],
        [question, {**tool_call, "content": "I look."}],
        [question],
        [question, tool_result],
        [{"role": "user"}],
    ]
    read = [ChatFormat(unusable="skip").read({"messages": turns}, WHERE) for turns in (*usable, *unusable)]
    assert [dialogue is not None for dialogue in read] == [True, True, *[False] * len(unusable)]


def test_refuses_turns_with_other_keys_also_where_rows_are_left_out() -> None:
    for turns in ([{"speaker": "user", "text": "hi"}], ["hi"]):
        with pytest.raises(UserError, match=f"turn 1 of {WHERE} is not a message; write "):
            ChatFormat(unusable="skip").read({"messages": turns}, WHERE)
