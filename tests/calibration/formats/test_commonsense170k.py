from __future__ import annotations

import collections
import json
from pathlib import Path

import pytest

from raysearch.calibration.formats.base import Item
from raysearch.calibration.formats.commonsense170k import Commonsense170kFormat
from tests.sentences import Sentences

WHERE = "row 3 of data.path=a.json"

#: Instruction, answer, and the task, question, choices and gold it is read as: a made-up row of each shape.
SHAPES: dict[str, tuple[str, str, str, tuple[str, ...], int]] = {
    "boolq": (
        "Please answer the following question with true or false, question: is ice cold?\n\nAnswer format: true/false",
        "false", "is ice cold?", ("true", "false"), 1,
    ),
    "piqa": (
        "Please choose the correct solution to the question: open a jar\n\nSolution1: twist: hard\n\nSolution2: sing"
        "\n\nAnswer format: solution1/solution2",
        "solution2", "open a jar", ("twist: hard", "sing"), 1,
    ),
    "social_i_qa": (
        "Please choose the correct answer to the question: Al helped Bo. How would Bo feel?\n\n"
        "Answer1: glad Answer2: sad Answer3: tall\n\nAnswer format: answer1/answer2/answer3",
        "answer1", "Al helped Bo. How would Bo feel?", ("glad", "sad", "tall"), 0,
    ),
    "hellaswag": (
        "Please choose the correct ending to complete the given sentence: Cooking: A man chops onions. He\n\n"
        "Ending1: cries. Ending2: flies. Ending3: dives. Ending4: drives.\n\n"
        "Answer format: ending1/ending2/ending3/ending4",
        "ending1", "Cooking: A man chops onions. He", ("cries.", "flies.", "dives.", "drives."), 0,
    ),
    "winogrande": (
        "Please choose the correct answer to fill in the blank to complete the given sentence: The box beat the bag "
        "since the _ was big.\n\nOption1: box Option2: bag Answer format: option1/option2",
        "option1", "The box beat the bag since the _ was big.", ("box", "bag"), 0,
    ),
    "arc_or_obqa": (
        "Please choose the correct answer to the question: Which is a mammal?\n\n"
        "Answer1: ant Answer2: bee Answer3: cod Answer4: dog Answer5: elm\n\n"
        "Answer format: answer1/answer2/answer3/answer4/answer5",
        "answer4", "Which is a mammal?", ("ant", "bee", "cod", "dog", "elm"), 3,
    ),
}  # fmt: skip


def test_every_shape_as_text() -> None:
    for task, (instruction, answer, stem, choices, gold) in SHAPES.items():
        item = Commonsense170kFormat(blank=None).read({"instruction": instruction, "answer": answer}, WHERE)
        assert item == Item(f"Question: {stem}\nAnswer:", choices, gold, group=task)


def test_every_shape_as_labels() -> None:
    for task, (instruction, answer, *_, gold) in SHAPES.items():
        item = Commonsense170kFormat(style="label").read({"instruction": instruction, "answer": answer}, WHERE)
        assert item.prompt == f"{instruction}\nthe correct answer is"
        assert item.choices[gold] == answer
        assert item.gold == gold
        assert item.group == task


def test_winogrande_fills_in_the_blank() -> None:
    row = {"instruction": SHAPES["winogrande"][0], "answer": "option2"}
    whole = tuple(f"The box beat the bag since the {word} was big." for word in ("box", "bag"))
    assert Commonsense170kFormat().read(row, WHERE) == Item("", whole, 1, group="winogrande")
    openings = tuple(f"The box beat the bag since the {word}" for word in ("box", "bag"))
    assert Commonsense170kFormat(blank="partial").read(row, WHERE) == Item(
        "", ("was big.", "was big."), 1, openings=openings, group="winogrande"
    )


def test_takes_the_last_markers_that_stand_in_order() -> None:
    instruction = (
        "Please choose the correct answer to the question: What does Answer1: or Answer2: mean? Answer1: a\n\n"
        "Answer1: this Answer2: that, not Answer3: Answer3: all\n\nAnswer format: answer1/answer2/answer3"
    )
    item = Commonsense170kFormat().read({"instruction": instruction, "answer": "answer1"}, WHERE)
    assert item.prompt == "Question: What does Answer1: or Answer2: mean? Answer1: a\nAnswer:"
    assert item.choices == ("this", "that, not", "Answer3: all")


def test_a_prompt_of_ones_own() -> None:
    row = {"instruction": SHAPES["boolq"][0], "answer": "true"}
    format_ = Commonsense170kFormat(style="label", prompt="### {stem}", separator="\nthe correct answer is ")
    item = format_.read(row, WHERE)
    assert item == Item("### is ice cold?", ("true", "false"), 0, separator="\nthe correct answer is ", group="boolq")


ROW = {"instruction": SHAPES["social_i_qa"][0], "answer": "answer1"}


def test_names_the_row_and_the_way_out(sentences: Sentences) -> None:
    cases = [
        {"instruction": None},
        {"answer": 1},
        {"instruction": "Who?"},
        {"answer": "answer4"},
        {"answer": ""},
        {"instruction": ROW["instruction"].replace("Answer2:", "Answer 2:")},
        {"instruction": ROW["instruction"].replace("sad ", "")},
    ]
    sentences.refused_each(
        lambda **row: Commonsense170kFormat().read(ROW | row, WHERE),
        cases,
    )


@pytest.mark.data
def test_reads_every_row_of_the_sample(data_folder: Path) -> None:
    text = (data_folder / "commonsense170k" / "sample.jsonl").read_text(encoding="utf-8")
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    for line in text.splitlines():
        row = json.loads(line)
        item = Commonsense170kFormat().read(row, WHERE)
        label = Commonsense170kFormat(style="label").read(row, WHERE)
        assert item.gold == label.gold
        assert label.choices[label.gold] == row["answer"]
        assert all(choice.strip() == choice != "" for choice in item.choices)
        counts[row["source_task"].partition("_")[0], item.group] += 1
    assert counts.total() == 6760
    for task, group in {
        "boolq": "boolq", "piqa": "piqa", "social": "social_i_qa", "hellaswag": "hellaswag", "winogrande": "winogrande",
        "ARC-Easy": "arc_or_obqa", "ARC-Challenge": "arc_or_obqa", "openbookqa": "arc_or_obqa",
    }.items():  # fmt: skip
        n_wrong = sum(n for (source, read_as), n in counts.items() if source == task and read_as != group)
        assert counts[task, group] >= 599, f"{task}: only a three-choice item of ARC may be misread"
        assert n_wrong <= 1, f"{task}: only a three-choice item of ARC may be misread"
