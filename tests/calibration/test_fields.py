from __future__ import annotations

from raysearch.calibration.fields import check_prompt, fill, take
from raysearch.errors import UserError
from tests.sentences import Sentences

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


def test_names_what_cannot_be_filled_in(sentences: Sentences) -> None:
    cases = [
        "{qery}",
        "{question}",
        "{deep.item}",
        "{list}",
        "{none}",
        "{query|title}",
    ]
    sentences.refused_each(lambda template: fill(template, ROW, "row 1", question="ask"), cases)


def test_a_prompt_takes_in_a_field_and_a_line_break_is_one(sentences: Sentences) -> None:
    for fine in ("", "{q}", "{q}\nA:"):
        check_prompt(fine)
    cases = [
        "Question:",
        "{q}\\nA:",
    ]
    sentences.refused_each(check_prompt, cases)


def test_takes_a_field_inside_another(sentences: Sentences) -> None:
    assert take(ROW, "question", "deep.stem", "row 1") == "how?"
    with sentences.refused(UserError):
        take(ROW, "question", "query.stem", "row 1")
