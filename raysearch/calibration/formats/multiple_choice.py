"""Questions with choices, in any shape: the keys say which field is what."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from raysearch.calibration.batch import Form
from raysearch.calibration.blanks import Blank, fill_blank
from raysearch.calibration.fields import as_text, check_prompt, fill, kind_of, take, take_text
from raysearch.calibration.formats.base import Item
from raysearch.calibration.gold import AnswerAs, find_gold
from raysearch.calibration.items import ItemOptions
from raysearch.errors import UserError


@dataclass(frozen=True)
class MultipleChoiceFormat:
    r"""Questions with choices.

    Args:
        question: The field of the question.
        choices: The field of the choices: a list of texts, or with labels ``{"A": …, "B": …}`` or ARC's
            ``{"text": […], "label": […]}``; or a list of fields, one a choice.
        fixed: The choices of every row, where no field holds them; None where one does.
        answer: The field of the answer: the number of a choice from 0 (false and true are 0 and 1), its letter from A,
            its label or its text.
        labels: What answers call the choices, in order, such as [1, 2]; None for the choices' own labels, or none.
        answer_as: ``index`` or ``text``, where an answer could be the number of one choice and the text of another,
            or the choices' own labels are not what answers say; ``auto`` else.
        prompt: What comes before a choice, with fields of the row in braces; ``{question}`` is the question,
            ``{options}`` the choices, a line each: ``A. …``.
        separator: What stands between prompt and choice.
        style: What is scored of a choice: its ``text``, or its ``letter``, for prompts that show the ``{options}``.
        blank: Where questions have a blank ``_`` for the choice: score the ``whole`` sentence, or what follows the
            blank (``partial``); None where they have none.
        clean: Whether to take WikiHow's marks, such as ``[title]``, out of prompts and choices, as HellaSwag wants.
        group: The field of the sub-task, to draw from each; None where there is only one.
    """

    question: str = "question"
    choices: str | Sequence[str] = "choices"
    fixed: Sequence[str] | None = None
    answer: str = "answer"
    labels: Sequence[str | int | bool] | None = None
    answer_as: AnswerAs = "auto"
    prompt: str = "Question: {question}\nAnswer:"
    separator: str = " "
    style: Literal["text", "letter"] = "text"
    blank: Blank | None = None
    clean: bool = False
    group: str | None = None

    offers: ClassVar[frozenset[Form]] = frozenset({Form.TEXT, Form.CHOICES, Form.PROMPT})
    draws: ClassVar[type] = ItemOptions

    def __post_init__(self) -> None:
        check_prompt(self.prompt)
        if self.style == "letter" and self.blank is not None:
            raise UserError(f"data.style=letter has no letter for data.blank={self.blank}; use data.blank=null")

    def read(self, row: Mapping[str, Any], where: str) -> Item:
        """See `Format.read`."""
        raw, own_labels = self._choices(row, where)
        texts = tuple(self._choice(choice, place, where) for place, choice in enumerate(raw))
        if not 2 <= len(texts) <= len(string.ascii_uppercase):
            count = f"{len(texts)} choice{'s' if len(texts) != 1 else ''}"
            raise UserError(f"{where} has {count}; give 2 … 26, or leave the row out")
        answer = take(row, "answer", self.answer, where)
        if self.answer_as != "auto":
            own_labels = None
        labels = own_labels if self.labels is None else self.labels
        gold = find_gold(answer, raw, labels, self.answer_as, f"{where} data.answer={self.answer}")
        letters = string.ascii_uppercase[: len(texts)]
        options = "\n".join(f"{letter}. {text}" for letter, text in zip(letters, texts, strict=True))
        prompt = self._clean(fill(self.prompt, {**row, "options": options}, where, question=self.question))
        group = "" if self.group is None else take_text(row, "group", self.group, where)
        if self.blank is not None:
            sentence = take_text(row, "question", self.question, where)
            return fill_blank(prompt, sentence, texts, gold, self.blank, where, group)
        return Item(prompt, tuple(letters) if self.style == "letter" else texts, gold, self.separator, group=group)

    def _choices(self, row: Mapping[str, Any], where: str) -> tuple[Sequence[Any], Sequence[Any] | None]:
        """The choices as the row has them, and its labels of them, if it has any."""
        if self.fixed is not None:
            return self.fixed, None
        if not isinstance(self.choices, str):
            return [take(row, "choices", field, where) for field in self.choices], None
        value = take(row, "choices", self.choices, where)
        if isinstance(value, Mapping) and {"text", "label"} <= set(value):
            texts, labels = value["text"], value["label"]
            if not (isinstance(texts, list) and isinstance(labels, list) and len(texts) == len(labels)):
                raise UserError(f"{where} has not one label for each text in data.choices={self.choices}; mend the row")
            return texts, labels
        if isinstance(value, Mapping):
            return list(value.values()), list(value)
        if not isinstance(value, list):
            raise UserError(
                f"{where} holds {kind_of(value)} in data.choices={self.choices}; name a field that holds a "
                "list, or one field a choice: data.choices=[a,b]"
            )
        if value and all(isinstance(choice, Mapping) and {"text", "label"} <= set(choice) for choice in value):
            return [choice["text"] for choice in value], [choice["label"] for choice in value]
        return value, None

    def _choice(self, choice: Any, place: int, where: str) -> str:
        text = as_text(choice)
        if text is None:
            raise UserError(f"{where} has {kind_of(choice)} as choice {place}; write texts")
        text = self._clean(text)
        if not text.strip():
            raise UserError(f"{where} has an empty choice {place}, counted from 0; fill it in, or leave the row out")
        return text

    def _clean(self, text: str) -> str:
        """What lm-eval does to HellaSwag, to the letter."""
        if not self.clean:
            return text
        return re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ")
