from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from raysearch.calibration.batch import Form
from raysearch.calibration.data import Data
from raysearch.calibration.formats.base import Item
from raysearch.calibration.formats.continuation import ContinuationFormat
from raysearch.configuration.compose import compose
from raysearch.configuration.parts import build_data
from raysearch.errors import UserError
from tests.calibration.tokenizers import characters
from tests.sentences import Sentences

WHERE = "row 3 of data.path=a.jsonl"
RAIN = "Rain fell on the hills all night."
ELSEWHERE = ("A tree came down in the storm.", "The road was closed until noon.")


def read(text: str, **options: Any) -> Item | None:
    return ContinuationFormat(**options).read({"text": text}, WHERE)


def ask(text: str, **options: Any) -> Item:
    item = read(text, **options)
    assert item is not None
    return item


def ask_after_rain(text: str) -> str | None:
    """What follows `RAIN` in the only item that can be made; the other sentences stand alone."""
    item = read("\n\n".join([f"{RAIN} {text}", *ELSEWHERE]), context_sentences=1, choices=2)
    assert item is None or (item.prompt == RAIN and wrong(item)[0] in ELSEWHERE)
    return None if item is None else gold(item)


def numbered(count: int, name: str = "Sentence") -> list[str]:
    return [f"{name} number {place:02d} says so." for place in range(count)]


def gold(item: Item) -> str:
    return item.choices[item.gold]


def wrong(item: Item) -> list[str]:
    return [choice for place, choice in enumerate(item.choices) if place != item.gold]


class TestItem:
    def test_by_hand(self) -> None:
        item = ask("\n".join([f"{RAIN} It made the farmers glad again.", *ELSEWHERE]), context_sentences=1, choices=2)
        assert (item.prompt, gold(item)) == (RAIN, "It made the farmers glad again.")
        assert wrong(item) == ["The road was closed until noon."], "what comes right after might follow as well"

    def test_gold_follows_the_prompt_and_the_others_stand_elsewhere(self) -> None:
        for name in ("Ann", "Bob", "Cid", "Dan", "Eve", "Flo", "Gus", "Hal"):
            sentences = numbered(30, name)
            item = ask(" ".join(sentences))
            place = sentences.index(gold(item))
            assert item == Item(" ".join(sentences[place - 3 : place]), item.choices, item.gold)
            places = [sentences.index(choice) for choice in wrong(item)]
            assert len(set(places)) == 3
            assert not set(places) & set(range(place - 6, place + 4)), "not from close by"

    @pytest.mark.parametrize(("context", "choices"), [(1, 2), (2, 5), (5, 3)])
    def test_options(self, context: int, choices: int) -> None:
        item = ask(" ".join(numbered(40)), context_sentences=context, choices=choices)
        assert (item.prompt.count("."), len(item.choices)) == (context, choices)

    def test_wrong_choices_are_as_long_as_the_right_one(self) -> None:
        sentences = [f"{sentence[:-1]}{' again' * (place % 10)}." for place, sentence in enumerate(numbered(90))]
        item = ask(" ".join(sentences))
        assert len({len(choice) for choice in item.choices}) == 1
        assert len({len(gold(ask(" ".join(sentences[n:])))) for n in range(10)}) > 3

    def test_gold_stands_in_any_place(self) -> None:
        places = [ask(" ".join(numbered(20, f"Text {n}"))).gold for n in range(80)]
        assert all(10 <= places.count(place) <= 30 for place in range(4))

    def test_depends_on_the_text_alone(self) -> None:
        text = " ".join(numbered(50))
        item = ask(text)
        assert ContinuationFormat("body").read({"body": text, "id": 1}, "row 9") == item
        assert (gold(item), item.gold) == ("Sentence number 32 says so.", 2), "on every machine and in every release"
        assert len({gold(ask(f"{text} The end of number {n}.")) for n in range(20)}) > 10

    def test_what_is_said_twice_is_one_choice_and_never_right_and_wrong(self) -> None:
        refrain = "That is the way we live."
        for n in range(10):
            item = ask(" ".join(f"{sentence} {refrain}" for sentence in numbered(20, f"Text {n}")))
            assert len(set(item.choices)) == 4
            assert refrain not in wrong(item)
            assert refrain.upper() not in wrong(item)

    def test_the_prompt_may_begin_in_another_paragraph_but_the_answer_goes_on_in_its_own(self) -> None:
        sentences = numbered(40)
        pairs = "\n".join(" ".join(sentences[place : place + 2]) for place in range(0, 40, 2))
        item = ask(pairs)
        assert sentences.index(gold(item)) % 2 == 1
        assert item.prompt.count(".") == 3
        assert read("\n".join(sentences)) is None


class TestSentences:
    def test_whole_ones(self) -> None:
        for sentence in [
            "We thank Mr. Smith and Gen. Grant for it.",
            "The U.S. Government and J. P. Morgan agreed to it.",
            "It cost 3.5 million dollars in No. 5 alone.",
            "Who would have thought of that, he asked?",
            "“Nobody would have thought of that,” he said.",
            '"We shall never surrender to them, never!"',
            "(This was not the end of it…)",
            "Élodie had never been there before.",
            "Это совсем другое дело, сказал он.",
        ]:
            assert ask_after_rain(sentence) == sentence
            assert ask_after_rain(f"{sentence} Too short.") == sentence

    def test_what_is_none(self) -> None:
        for words in [
            "That was all.",
            f"It rained{' and rained' * 30}.",
            "a line that somebody began in small letters.",
            "A Heading Which Has No Full Stop",
            "[At this point the audience rose.]",
        ]:
            assert ask_after_rain(words) is None, words

    def test_lines_broken_by_hand_are_one_paragraph(self) -> None:
        assert ask_after_rain("It made the farmers\r\n  glad\nagain.") == "It made the farmers glad again."
        assert ask_after_rain("\nIt made the farmers glad again.") is None
        assert ask_after_rain("\n \nit made the farmers glad again.") is None


def test_refuses_options_out_of_range_and_rows_without_the_field(sentences: Sentences) -> None:
    cases = [
        {"context_sentences": 0},
        {"choices": 1},
    ]
    sentences.refused_each(ContinuationFormat, cases)
    with sentences.refused(UserError):
        ContinuationFormat().read({"texts": "a"}, WHERE)


def data_of(path: Path, documents: list[str], *overrides: str) -> Data:
    path.write_text("".join(json.dumps({"text": document}) + "\n" for document in documents), encoding="utf-8")
    return build_data(compose("evaluation", ["data=continuation", f"data.path={path}", *overrides])["data"])


class TestData:
    DOCUMENTS = tuple(" ".join(numbered(20, f"Text {n}")) for n in range(8))

    def test_short_documents_are_skipped_and_counted(self, tmp_path: Path) -> None:
        documents = ["", *self.DOCUMENTS, RAIN, self.DOCUMENTS[0]]
        drawn = data_of(tmp_path / "a.jsonl", documents, "data.samples=8").samples(characters(), Form.CHOICES)
        assert drawn.batch.n_samples == 8
        assert len(drawn.batch.input_ids) == 32
        counts = {key: drawn.description[key] for key in ("rows_read", "duplicates", "skipped", "truncated")}
        assert counts == {"rows_read": 11, "duplicates": 1, "skipped": 2, "truncated": 0}
        none = data_of(tmp_path / "b.jsonl", [*self.DOCUMENTS], "data.samples=8").samples(characters(), Form.CHOICES)
        assert "skipped" not in none.description

    @pytest.mark.parametrize(
        "documents",
        [
            [RAIN, ""],
            [*DOCUMENTS, DOCUMENTS[0], RAIN],
        ],
    )
    def test_too_few_documents_are_refused(self, tmp_path: Path, documents: list[str], sentences: Sentences) -> None:
        data = data_of(tmp_path / "a.jsonl", documents)
        data.check()
        with sentences.refused(UserError):
            data.samples(characters(), Form.CHOICES)

    def test_text_objectives_score_the_answer(self, tmp_path: Path, sentences: Sentences) -> None:
        data = data_of(tmp_path / "a.jsonl", [self.DOCUMENTS[0]], "data.samples=1")
        assert data.samples(characters(), Form.TEXT).batch.n_scored == len(" Text 0 number 00 says so.")
        with sentences.refused(UserError):
            data.check_form(Form.PROMPT)


@pytest.mark.real
class TestRealData:
    def test_items_of_offline_margin(self, smollm2_tokenizer: Any) -> None:
        data = build_data(compose("evaluation", ["calibration=offline_margin"])["data"])
        drawn = data.samples(smollm2_tokenizer, Form.CHOICES)
        assert (drawn.batch.n_samples, len(drawn.batch.input_ids)) == (64, 256)
        assert drawn.description["rows_read"] == 237
        assert "skipped" not in drawn.description
        assert drawn.description["duplicates"] == drawn.description["truncated"] == 0
        assert len({tuple(row) for row in drawn.batch.input_ids.tolist()}) == 256

    def test_length_gives_nothing_away(self) -> None:
        data = build_data(compose("evaluation", ["data=sotu_continuation"])["data"])
        items = [item for where, row in data.rows.read() if isinstance(item := data.format.read(row, where), Item)]
        assert len(items) == 237
        differences = [abs(len(choice) / len(gold(item)) - 1) for item in items for choice in wrong(item)]
        assert sum(differences) / len(differences) < 0.04
        longest = sum(all(len(choice) < len(gold(item)) for choice in wrong(item)) for item in items)
        shortest = sum(all(len(choice) > len(gold(item)) for choice in wrong(item)) for item in items)
        assert longest < 237 / 4
        assert shortest < 237 / 4
