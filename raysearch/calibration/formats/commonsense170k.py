"""Commonsense170k, the training set of LLM-Adapters: eight tasks in one instruction format, recognised by its shape.

Source: Hu et al. 2023 (arXiv 2304.01933), ``ft-training_set/commonsense_170k.json`` of AGI-Edgerunners/LLM-Adapters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from typing_extensions import override

from raysearch.calibration.batch import Form
from raysearch.calibration.fields import check_prompt, fill
from raysearch.calibration.formats.base import Format, Item
from raysearch.calibration.formats.multiple_choice import Blank, fill_blank
from raysearch.calibration.items import ItemOptions
from raysearch.errors import UserError

_FORMAT = re.compile(r"Answer format:\s*([A-Za-z0-9/ ]+?)\s*$")
_PROMPTS = {"text": "Question: {stem}\nAnswer:", "label": "{instruction}\nthe correct answer is"}
_TASKS = {"solution": "piqa", "ending": "hellaswag", "option": "winogrande"}


@dataclass(frozen=True)
class Commonsense170kFormat(Format):
    """Rows of ``{"instruction": …, "answer": …}``.

    Args:
        style: The scored part of a choice: its ``text``, after the bare question as in PuDDing; or its ``label``
            (``answer2``), after the whole instruction, which shows the choices, as in the original format.
        prompt: The text before a choice, with ``{stem}``, the question without choices, or ``{instruction}``; None
            for the default of the style.
        separator: The text between prompt and choice.
        blank: For WinoGrande in the style ``text``: score the ``whole`` sentence with each choice filled in, or the
            text after the blank (``partial``); None to treat WinoGrande like the other tasks.
    """

    style: Literal["text", "label"] = "text"
    prompt: str | None = None
    separator: str = " "
    blank: Blank | None = "whole"

    offers = frozenset({Form.TEXT, Form.CHOICES, Form.PROMPT})
    draws = ItemOptions

    def __post_init__(self) -> None:
        super().__post_init__()
        check_prompt(self.prompt or "")

    @override
    def read(self, row: Mapping[str, Any], where: str) -> Item:
        instruction = _field(row, "instruction", where)
        question = _parse(instruction, where)
        answer = _field(row, "answer", where)
        if answer not in question.labels:
            labels = ", ".join(question.labels)
            raise UserError(f"{where} has the answer {answer!r}, which is none of {labels}; mend the row")
        gold = question.labels.index(answer)
        group = _task(question.labels)
        if self.style == "text" and group == "winogrande" and self.blank is not None:
            return fill_blank("", question.stem, question.choices, gold, self.blank, where, group)
        template = _PROMPTS[self.style] if self.prompt is None else self.prompt
        prompt = fill(template, {**row, "instruction": instruction, "stem": question.stem}, where)
        choices = question.choices if self.style == "text" else question.labels
        return Item(prompt, choices, gold, self.separator, group=group)


class _Question(NamedTuple):
    """The parts of an instruction."""

    stem: str  #: the question without its introduction
    choices: tuple[str, ...]  #: the texts of the choices
    labels: tuple[str, ...]  #: the names of the choices: ``answer1``


def _field(row: Mapping[str, Any], name: str, where: str) -> str:
    if not isinstance(row.get(name), str):
        raise UserError(f"{where} has no text in its field {name!r}; give rows of Commonsense170k")
    return row[name].strip()


def _parse(instruction: str, where: str) -> _Question:
    answer_format = _FORMAT.search(instruction)
    if answer_format is None:
        raise UserError(f"{where} does not end in 'Answer format: …'; give rows of Commonsense170k")
    labels = tuple(answer_format[1].split("/"))
    body = instruction[: answer_format.start()]
    if labels == ("true", "false"):
        return _Question(_without_introduction(body), choices=labels, labels=labels)
    markers = [f"{label.capitalize()}:" for label in labels]
    # A question may itself contain ``Answer1:``, so this takes the last place that all other markers follow.
    parts = re.fullmatch(f"(.*){'(.*?)'.join(markers)}(.*)", body, re.DOTALL)
    if parts is None:
        raise UserError(f"{where} does not hold {' '.join(markers)} in this order; give rows of Commonsense170k")
    stem, *choices = (part.strip() for part in parts.groups())
    for label, choice in zip(labels, choices, strict=True):
        if not choice:
            raise UserError(f"{where} has nothing after {label.capitalize()}; fill it in, or leave the row out")
    return _Question(_without_introduction(stem), tuple(choices), labels)


def _without_introduction(body: str) -> str:
    """Return the text after the introduction, ``Please choose the correct answer to the question:``."""
    introduction, colon, question = body.partition(":")
    return question.strip() if colon else introduction.strip()


def _task(labels: Sequence[str]) -> str:
    """Return the sub-task that the labels suggest. Three answers mean Social IQa, but a few rows are from ARC."""
    if "true" in labels:
        return "boolq"
    kind = labels[0].rstrip("0123456789")
    if kind == "answer":
        return "social_i_qa" if len(labels) == 3 else "arc_or_obqa"
    return _TASKS.get(kind, kind)
