from __future__ import annotations

from typing import Any

import pytest

from raysearch.calibration.fields import check_prompt, fill, take
from raysearch.errors import UserError
from tests.cases import assert_refused

ROW = {"query": "why?", "n": 3, "x": 1.5, "deep": {"stem": "how?"}, "a.b": "dotted", "list": ["a"], "none": None}


def test_fills_in_fields() -> None:
    for template, filled in [
        ("Q: {query}\nA:", "Q: why?\nA:"),
        ("{n} {x}", "3 1.5"),
        ("{deep.stem} {a.b}", "how? dotted"),
        ("{question} {query|capitalize}", "why? Why?"),
        ("{ } {} {{query}} { query }", "{ } {} {why?} { query }"),
        ("", ""),
    ]:
        assert fill(template, ROW, "row 1", question="query") == filled
    assert fill("{Correct-answer text|strip}.", {"Correct-answer text": " here "}, "row 1") == "here."


def test_names_what_cannot_be_filled_in() -> None:
    cases: list[tuple[Any, str]] = [
        ("{qery}", "row 1 has no qery, which data.prompt uses; did you mean 'query'?"),
        ("{question}", "row 1 has no data.question=ask; choose one of: a.b, deep, list, n, none, query, x"),
        ("{deep.item}", "row 1 has no deep.item, which data.prompt uses; "),
        ("{list}", "row 1 holds a list in list, which data.prompt uses; use a field of text"),
        ("{none}", "row 1 holds null in none, which data.prompt uses"),
        ("{query|title}", "data.prompt has the unknown filter {query|title}; choose one of: capitalize, strip"),
    ]
    assert_refused(lambda template: fill(template, ROW, "row 1", question="ask"), cases)


def test_a_prompt_takes_in_a_field_and_a_line_break_is_one() -> None:
    for fine in ("", "{q}", "{q}\nA:"):
        check_prompt(fine)
    cases = [
        ("Question:", "data.prompt='Question:' uses no field; name one in braces, such as {question}"),
        ("{q}\\nA:", r"data.prompt={q}\nA: has a backslash and an n; for a line break type $'data"),
    ]
    assert_refused(check_prompt, cases)


def test_takes_a_field_inside_another() -> None:
    assert take(ROW, "question", "deep.stem", "row 1") == "how?"
    with pytest.raises(UserError, match=r"row 1 has no data.question=query.stem; did you mean 'query'\?"):
        take(ROW, "question", "query.stem", "row 1")
