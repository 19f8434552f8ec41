from __future__ import annotations

from typing import Any

from raysearch.calibration.formats.base import Dialogue
from raysearch.calibration.formats.chat import ChatFormat
from raysearch.errors import UserError
from tests.sentences import Sentences

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


def test_names_the_row_and_the_way_out(sentences: Sentences) -> None:
    cases = [
        "hi",
        [],
        ["hi"],
        [{"role": "user"}],
        [{"role": "usr", "content": "a"}],
        [{"role": ["user"], "content": "a"}],
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": " "}],
        [{"role": "user", "content": [{"type": "image"}]}],
        [{"role": "user", "content": ["a"]}],
        [{"role": "user", "content": []}],
        [{"role": "user", "content": "a"}],
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "tool_calls": [{}]}],
    ]
    sentences.refused_each(lambda messages: ChatFormat().read({"messages": messages}, WHERE), cases)
    with sentences.refused(UserError):
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


def test_refuses_turns_with_other_keys_also_where_rows_are_left_out(sentences: Sentences) -> None:
    for turns in ([{"speaker": "user", "text": "hi"}], ["hi"]):
        with sentences.refused(UserError):
            ChatFormat(unusable="skip").read({"messages": turns}, WHERE)
