from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from raysearch.calibration.formats.base import Item
from raysearch.calibration.formats.multiple_choice import MultipleChoiceFormat, find_gold
from raysearch.configuration.parts import build_data
from tests.calibration.presets import preset_values
from tests.sentences import Sentences

WHERE = "row 3 of data.path=a.jsonl"


def preset(name: str, row: dict[str, Any], **changes: Any) -> Item:
    """A row as a file of conf/data/ reads it."""
    item = build_data(preset_values(name) | {"path": "a.jsonl"} | changes).format.read(row, WHERE)
    assert isinstance(item, Item)
    return item


class TestShapes:
    """One item in each shape that choices and answers come in."""

    SHAPES: ClassVar[list[tuple[dict[str, Any], dict[str, Any]]]] = [
        ({"choices": ["dog", "cat"], "answer": 1}, {}),
        ({"choices": ["dog", "cat"], "answer": "1"}, {}),
        ({"choices": ["dog", "cat"], "answer": "B"}, {}),
        ({"choices": ["dog", "cat"], "answer": "cat"}, {}),
        ({"choices": ["dog", "cat"], "answer": "2"}, {"labels": [1, 2]}),
        ({"choices": {"text": ["dog", "cat"], "label": ["X", "Y"]}, "answer": "Y"}, {}),
        ({"choices": [{"text": "dog", "label": "1"}, {"text": "cat", "label": "2"}], "answer": "2"}, {}),
        ({"choices": {"X": "dog", "Y": "cat"}, "answer": "Y"}, {}),
        ({"a": "dog", "b": "cat", "answer": True}, {"choices": ["a", "b"]}),
        ({"wrong": "dog", "right": "cat"}, {"choices": ["wrong", "right"], "answer": "right"}),
        ({"answer": True}, {"fixed": ["dog", "cat"]}),
        ({"deep": {"options": ["dog", "cat"], "key": 1}}, {"choices": "deep.options", "answer": "deep.key"}),
    ]

    def test_one_item(self) -> None:
        for row, options in self.SHAPES:
            item = MultipleChoiceFormat(**options).read({"question": "Who purrs?", **row}, WHERE)
            assert item == Item("Question: Who purrs?\nAnswer:", ("dog", "cat"), 1), (row, options)

    def test_numbers_are_choices_too(self) -> None:
        item = MultipleChoiceFormat().read({"question": "1 + 1?", "choices": [1, 2, 3], "answer": "B"}, WHERE)
        assert (item.choices, item.gold) == (("1", "2", "3"), 1)

    def test_letters_for_prompts_that_show_the_options(self) -> None:
        format_ = MultipleChoiceFormat(prompt="{question}\n{options}\nAnswer:", style="letter")
        item = format_.read({"question": "Who purrs?", "choices": ["dog", "cat"], "answer": "cat"}, WHERE)
        assert item == Item("Who purrs?\nA. dog\nB. cat\nAnswer:", ("A", "B"), 1)

    def test_a_group_and_another_question(self) -> None:
        format_ = MultipleChoiceFormat(question="q", group="task", prompt="{question} ({topic})", separator="\n")
        row = {"q": "Who?", "topic": "pets", "task": "cats", "choices": ["a", "b"], "answer": 0}
        item = format_.read(row, WHERE)
        assert item == Item("Who? (pets)", ("a", "b"), 0, separator="\n", group="cats")


BOOLQ = {"question": "is it wet", "passage": "Rain is wet."}
PIQA: dict[str, Any] = {"goal": "open a jar", "sol1": "twist the lid", "sol2": "twist the jar's base", "label": 0}
HELLASWAG = {
    "activity_label": "Home and Garden",
    "ctx_a": "[header] How to paint [title] Clean the wall. [step] Use a Cloth.",
    "ctx_b": "the Wall",
    "ctx": "is not read",
    "endings": [" dries.", "[substeps] is  wet.", "sings", "[step] falls"],
    "label": "2",
}
BOX = "The box beat the bag since the"
WINOGRANDE = {"sentence": f"{BOX} _ was big.", "option1": "box", "option2": "bag"}
ARC = {"question": "Which is a mammal?", "choices": {"text": ["ant", "cow"], "label": ["1", "2"]}, "answerKey": "2"}
OBQA = {"question_stem": "Plants need", "choices": {"text": ["sun", "ink"], "label": ["A", "B"]}, "answerKey": "A"}
READY = {"query": "Question: Who?\nAnswer:", "choices": ["a", "b", "c"], "gold": 2}
WET = Item("Rain is wet.\nQuestion: is it wet?\nAnswer:", ("no", "yes"), 1)
MAMMAL = Item("Question: Which is a mammal?\nAnswer:", ("ant", "cow"), 1)
CLOTH = Item(
    "Home and Garden: How to paint. Clean the wall. Use a Cloth. The wall", ("dries.", " is wet.", "sings", " falls"), 2
)
#: A preset, a row, changes of the preset, and the item, which lm-eval 0.4.13 asks in the same words.
PRESETS: list[tuple[str, dict[str, Any], dict[str, Any], Item]] = [
    ("boolq", {**BOOLQ, "answer": True}, {}, WET),
    ("boolq", {**BOOLQ, "label": 1}, {"answer": "label"}, WET),
    ("piqa", PIQA, {}, Item("Question: open a jar\nAnswer:", (PIQA["sol1"], PIQA["sol2"]), 0)),
    ("hellaswag", HELLASWAG, {}, CLOTH),
    ("hellaswag", {**HELLASWAG, "ctx_b": ""}, {}, replace(CLOTH, prompt=CLOTH.prompt.removesuffix(" The wall"))),
    (
        "winogrande",
        {**WINOGRANDE, "answer": "1"},
        {},
        Item("", ("was big.", "was big."), 0, openings=(f"{BOX} box", f"{BOX} bag")),
    ),
    (
        "winogrande",
        {**WINOGRANDE, "answer": "2"},
        {"blank": "whole"},
        Item("", (f"{BOX} box was big.", f"{BOX} bag was big."), 1),
    ),
    (
        "winogrande",
        {**WINOGRANDE, "answer": "1"},
        {"blank": None, "prompt": "{question} It is the"},
        Item(f"{BOX} _ was big. It is the", ("box", "bag"), 0),
    ),
    ("arc_easy", ARC, {}, MAMMAL),
    ("arc_challenge", ARC, {}, MAMMAL),
    ("openbookqa", OBQA, {}, Item("Plants need", ("sun", "ink"), 0)),
    (
        "multiple_choice",
        READY,
        {"question": "query", "answer": "gold", "prompt": "{question}"},
        Item("Question: Who?\nAnswer:", ("a", "b", "c"), 2),
    ),
]


def test_presets_ask_as_lm_eval_does() -> None:
    wrong = [case for case in PRESETS if preset(case[0], case[1], **case[2]) != case[3]]
    assert not wrong


GOOD = {"question": "Who?", "choices": ["dog", "cat"], "answer": 1}


REFUSED = [
    ({"choices": None}, {}),
    ({"choices": "dog"}, {}),
    ({"choices": {"text": "ab", "label": "AB"}}, {}),
    ({"choices": {"text": ["a"], "label": []}}, {}),
    ({"choices": []}, {}),
    ({"choices": ["dog"]}, {}),
    ({"choices": ["x"] * 27}, {}),
    ({"choices": ["dog", " "]}, {}),
    ({"choices": ["dog", None]}, {}),
    ({"choices": ["dog", ["cat"]]}, {}),
    ({}, {"choices": "options"}),
    ({}, {"choices": ["a", "b"]}),
    ({}, {"answer": "label"}),
    ({}, {"question": "questions"}),
    ({"question": None}, {}),
    ({"answer": 2}, {}),
    ({"answer": None}, {}),
    ({}, {"group": "task"}),
    ({}, {"blank": "whole"}),
    ({"choices": ["C", "A", "B"], "answer": "A"}, {"labels": ["A", "B", "C"]}),
    ({"question": "It is _"}, {"blank": "partial"}),
]


def test_names_the_row_and_the_way_out(sentences: Sentences) -> None:
    sentences.refused_each(
        lambda case: MultipleChoiceFormat(**case[1]).read(GOOD | case[0], WHERE),
        REFUSED,
    )


def test_refuses_options_that_contradict(sentences: Sentences) -> None:
    cases = [
        {"prompt": "Answer:"},
        {"style": "letter", "blank": "whole"},
        {"prompt": "{question}", "style": "letter"},
    ]
    sentences.refused_each(MultipleChoiceFormat, cases)


#: An answer, the choices, their labels, and the place of the right choice.
GOLD: list[tuple[Any, list[Any], list[Any] | None, int]] = [
    (0, ["a", "b"], None, 0),
    (1, ["a", "b"], None, 1),
    ("1", ["a", "b"], None, 1),
    (" 1 ", ["a", "b"], None, 1),
    (False, ["no", "yes"], None, 0),
    (True, ["no", "yes"], None, 1),
    ("TRUE", ["no", "yes"], None, 1),
    ("false", ["true", "false"], None, 1),
    ("C", ["x", "y", "z"], None, 2),
    ("b", ["x", "y", "z"], None, 1),
    ("cat", ["dog", "cat "], None, 1),
    ("12", ["3", "12", "5"], None, 1),
    ("a", ["a", "b"], None, 0),
    (2, [5, 7, 9], None, 2),
    (7, [5, 7, 9], None, 1),
    (2, ["1", "2", "3"], None, 2),
    ("B", ["x", "y"], ["A", "B"], 1),
    ("2", ["x", "y"], ["1", "2"], 1),
    (2, ["x", "y"], [1, 2], 1),
    (" B", ["x", "y"], ["A", "B", "C"], 1),
    ("true", ["x", "y"], [False, True], 1),
    (True, ["x", "y"], ["true", "false"], 0),
    ("A", ["x", "y"], ["a", "A"], 1),
]
NO_GOLD = [
    (2, ["a", "b"], None),
    (-1, ["a", "b"], None),
    ("", ["a", "b"], None),
    (None, ["a", "b"], None),
    ("cats", ["dog", "cat"], None),
    (["a"], ["a", "b"], None),
    ("x", ["x", "x"], None),
    ("2", ["1", "2", "3"], None),
    ("A", ["C", "A", "B"], None),
    ("E", ["x", "y"], ["A", "B"]),
    ("A", ["x", "y"], ["A", "A"]),
    ("b", ["x", "y"], ["B", " b"]),
    ("C", ["x", "y"], ["A", "B", "C"]),
]  # fmt: skip


def test_the_right_choice_is_found() -> None:
    wrong = [case for case in GOLD if find_gold(*case[:3], WHERE) != case[3]]
    assert not wrong


def test_an_answer_that_means_no_choice_is_refused(sentences: Sentences) -> None:
    where = f"{WHERE} data.answer=answer"
    sentences.refused_each(
        lambda case: find_gold(case[0], case[1], case[2], where),
        NO_GOLD,
    )
