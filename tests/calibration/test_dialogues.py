from __future__ import annotations

from typing import Any

import pytest
from tokenizers import AddedToken

from raysearch.calibration.dialogues import render, render_prompt, render_task
from raysearch.calibration.formats.base import Dialogue
from raysearch.calibration.formats.chat import ChatFormat
from raysearch.calibration.formats.generation import GenerationFormat
from raysearch.errors import UserError
from tests.calibration.tokenizers import PLAIN, STRICT, THINKING, characters
from tests.sentences import Sentences

TALK = Dialogue((("user", "a"), ("assistant", " b c "), ("user", "b c"), ("assistant", "d")))


def answers(text: str, spans: tuple[tuple[int, int], ...]) -> list[str]:
    return [text[start:stop] for start, stop in spans]


def test_finds_the_turns_of_the_assistant() -> None:
    text, spans = render(TALK, characters(template=PLAIN), "row 1")
    assert text == "<user>a</s><assistant> b c </s><user>b c</s><assistant>d</s>"
    assert answers(text, spans) == [" b c </s>", "d</s>"]
    assert text.index(" b c ") == spans[0][0]


def test_finds_turns_that_the_template_strips() -> None:
    text, spans = render(TALK, characters(template=STRICT), "row 1")
    assert text == "<s><user>a</s><assistant>b c</s><user>b c</s><assistant>d</s>"
    assert answers(text, spans) == ["b c</s>", "d</s>"]
    assert spans[0][0] == text.index("b c")


def test_the_same_text_elsewhere_does_not_mislead() -> None:
    template = "Be an assistant. yes, yes. " + PLAIN
    talk = Dialogue((("user", "yes"), ("assistant", "yes")))
    text, spans = render(talk, characters(template=template), "row 1")
    assert spans == ((text.rindex("yes"), text.rindex("yes</s>") + len("yes</s>")),)


def test_the_token_that_ends_a_turn_is_read_from_the_template() -> None:
    def ends(written: str, **options: Any) -> list[str]:
        tokenizer = characters(template=PLAIN.replace("</s>", written))
        for token in ("<end>", "<end>more", "  "):
            tokenizer.add_tokens(AddedToken(token, **options))
        return [answer.removeprefix(" b c ").removeprefix("d") for answer in answers(*render(TALK, tokenizer, "row"))]

    assert ends("<end>\n") == ["<end>"] * 2
    assert ends("<end>\n", rstrip=True) == ["<end>\n"] * 2, "the token takes the white space"
    assert ends(" <end>") == [" <end>"] * 2
    assert ends("<end>more") == ["<end>more"] * 2
    assert ends("</s><end>") == ["</s>"] * 2
    assert ends("") == ends("\n") == ends("  ") == ends(".<end>") == ["", ""]


def test_asks_for_the_last_answer() -> None:
    prompt, answer = render_prompt(TALK, characters(template=PLAIN), "row 1")
    assert (prompt, answer) == ("<user>a</s><assistant> b c </s><user>b c</s><assistant>", "d")
    later = Dialogue((*TALK.messages, ("user", "thanks")))
    assert render_prompt(later, characters(template=PLAIN), "row 1") == (prompt, answer)


def test_a_model_that_thinks_is_told_not_to(sentences: Sentences) -> None:
    tokenizer = characters(template=THINKING)
    row = {"messages": [*_turns("a", "b")], "q": "a", "a": "b"}
    for thinking, end in ((None, ""), (True, ""), (False, "<no>")):
        chat = ChatFormat(thinking=thinking).read(row, "row 1")
        task = GenerationFormat("{q}", "exact", "a", thinking=thinking).read(row, "row 1")
        assert isinstance(chat, Dialogue)
        assert render_prompt(chat, tokenizer, "row 1")[0] == f"<user>a</s><assistant>{end}"
        assert render_task(task, tokenizer, "row 1")[0] == f"<user>a</s><assistant>{end}"
        assert render(chat, tokenizer, "row 1")[0] == "<user>a</s><assistant>b</s>"
    with sentences.refused(UserError):
        render_task(task, characters(template=PLAIN), "row 1")


def test_templates_that_write_the_date_write_the_same_one_every_day() -> None:
    of_llama = "{% if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
    tokenizer = characters(template=of_llama + "{{ date_string }}, {{ strftime_now('%Y-%m-%d') }}: " + PLAIN)
    text, _ = render(TALK, tokenizer, "row 1")
    assert text.startswith("26 Jul 2024, 2024-07-26: <user>")
    other_ways = "{% set form = '%d %b %Y' %}{{ strftime_now( form ) }}, {{ strftime_now(\n'%d') }}: "
    text, _ = render(TALK, characters(template=other_ways + PLAIN), "row 1")
    assert text.startswith("26 Jul 2024, 26: <user>")


def _turns(question: str, answer: str) -> tuple[dict[str, str], ...]:
    return {"role": "user", "content": question}, {"role": "assistant", "content": answer}


@pytest.mark.real
def test_with_a_real_template(smollm2_tokenizer: Any) -> None:
    text, spans = render(TALK, smollm2_tokenizer, "row 1")
    assert text == smollm2_tokenizer.apply_chat_template(
        [{"role": role, "content": content} for role, content in TALK.messages], tokenize=False
    )
    assert answers(text, spans) == [" b c <|im_end|>", "d<|im_end|>"]


def test_names_what_the_template_does_not_take(sentences: Sentences) -> None:
    cases = [
        (None, TALK.messages),
        (STRICT, TALK.messages[1:]),
        ("{{ messages[-1].content | upper }}", TALK.messages),
        ("{{ messages[0].content }}", TALK.messages),
        ("{{ messages[0].content | length }}", TALK.messages),
    ]
    sentences.refused_each(
        lambda case: render(Dialogue(case[1]), characters(template=case[0]), "row 1"),
        cases,
    )


def test_names_a_conversation_with_nothing_to_go_on_from(sentences: Sentences) -> None:
    with sentences.refused(UserError):
        render_prompt(Dialogue((("assistant", "hi"),)), characters(template=PLAIN), "row 1")
