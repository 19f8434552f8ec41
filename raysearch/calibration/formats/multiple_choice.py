"""Questions with choices, in any shape: the keys name the fields."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from typing_extensions import override

from raysearch.calibration.batch import Form
from raysearch.calibration.fields import as_text, check_prompt, fill, kind_of, remedy_for, take, take_text
from raysearch.calibration.formats.base import Format, Item
from raysearch.calibration.items import ItemOptions
from raysearch.errors import UserError
from raysearch.text.numbers import count
from raysearch.text.sentences import did_you_mean

#: The scored part of a sentence with a filled blank: the ``whole`` sentence, as in PuDDing; or the text after the blank
#: (``partial``), as in lm-eval.
Blank = Literal["whole", "partial"]


@dataclass(frozen=True)
class MultipleChoiceFormat(Format):
    r"""Questions with choices.

    Args:
        question: The field of the question.
        choices: The field of the choices: a list of texts, or with labels ``{"A": …, "B": …}`` or ARC's
            ``{"text": […], "label": […]}``; or a list of fields, one field for each choice.
        fixed: The choices of every row, if no field holds them; None if a field does.
        answer: The field of the answer: the number of a choice from 0 (false and true are 0 and 1), its letter from A,
            its label or its text.
        labels: The names of the choices that answers use, in order, such as [1, 2]; None for the labels in the row, if
            any.
        prompt: The text before a choice, with fields of the row in braces; ``{question}`` is the question,
            ``{options}`` the choices, one line each: ``A. …``.
        separator: The text between prompt and choice.
        style: The scored part of a choice: its ``text``, or its ``letter``, for prompts that show the ``{options}``.
        blank: For questions with a blank ``_``, which the choice fills: score the ``whole`` sentence, or the text after
            the blank (``partial``); None if there is no blank.
        clean: Whether to remove WikiHow's marks, such as ``[title]``, from prompts and choices, for HellaSwag.
        group: The field of the sub-task, to draw from each sub-task; None if there is only one.
    """

    question: str = "question"
    choices: str | Sequence[str] = "choices"
    fixed: Sequence[str] | None = None
    answer: str = "answer"
    labels: Sequence[str | int | bool] | None = None
    prompt: str = "Question: {question}\nAnswer:"
    separator: str = " "
    style: Literal["text", "letter"] = "text"
    blank: Blank | None = None
    clean: bool = False
    group: str | None = None

    offers = frozenset({Form.TEXT, Form.CHOICES, Form.PROMPT})
    draws = ItemOptions

    def __post_init__(self) -> None:
        super().__post_init__()
        check_prompt(self.prompt)
        if self.style == "letter" and self.blank is not None:
            raise UserError(f"data.style=letter has no letter for data.blank={self.blank}; use data.blank=null")
        if self.style == "letter" and "{options" not in self.prompt:
            raise UserError(
                "data.style=letter scores letters that data.prompt does not show; put {options} into data.prompt"
            )

    @override
    def read(self, row: Mapping[str, Any], where: str) -> Item:
        choices, row_labels = self._choices(row, where)
        texts = tuple(self._choice(choice, index, where) for index, choice in enumerate(choices))
        if not 2 <= len(texts) <= len(string.ascii_uppercase):
            raise UserError(f"{where} has {count(len(texts), 'choice')}; give 2 … 26, or leave the row out")
        answer = take(row, "answer", self.answer, where)
        labels = row_labels if self.labels is None else self.labels
        gold = find_gold(answer, choices, labels, f"{where} data.answer={self.answer}")
        if self.labels is not None:
            _check_label(answer, choices, gold, f"{where} data.answer={self.answer}")
        letters = string.ascii_uppercase[: len(texts)]
        options = "\n".join(f"{letter}. {text}" for letter, text in zip(letters, texts, strict=True))
        prompt = self._clean(fill(self.prompt, {**row, "options": options}, where, question=self.question))
        group = "" if self.group is None else take_text(row, "group", self.group, where)
        if self.blank is not None:
            sentence = take_text(row, "question", self.question, where)
            return fill_blank(prompt, sentence, texts, gold, self.blank, where, group)
        return Item(prompt, tuple(letters) if self.style == "letter" else texts, gold, self.separator, group=group)

    def _choices(self, row: Mapping[str, Any], where: str) -> tuple[Sequence[Any], Sequence[Any] | None]:
        """Return the choices as they are in the row, and the row's labels of the choices, if any."""
        if self.fixed is not None:
            return self.fixed, None
        if not isinstance(self.choices, str):
            return [take(row, "choices", field, where) for field in self.choices], None
        if self.choices not in row and (columns := _alike([name for name in row if name != self.answer])):
            raise UserError(
                f"{where} has no data.choices={self.choices}; where each choice has its own field, name them all, "
                f"such as data.choices=[{','.join(columns)}]"
            )
        value = take(row, "choices", self.choices, where)
        if isinstance(value, Mapping) and {"text", "label"} <= set(value):
            texts = value["text"]
            labels = value["label"]
            if not (isinstance(texts, list) and isinstance(labels, list) and len(texts) == len(labels)):
                raise UserError(
                    f"{where} does not have one label for each text in data.choices={self.choices}; mend the row"
                )
            return texts, labels
        if isinstance(value, Mapping):
            return list(value.values()), list(value)
        if not isinstance(value, list):
            remedy = remedy_for(value, "name a field that holds a list, or one field a choice: data.choices=[a,b]")
            raise UserError(f"{where} holds {kind_of(value)} in data.choices={self.choices}; {remedy}")
        if value and all(isinstance(choice, Mapping) and {"text", "label"} <= set(choice) for choice in value):
            return [choice["text"] for choice in value], [choice["label"] for choice in value]
        return value, None

    def _choice(self, choice: Any, index: int, where: str) -> str:
        text = as_text(choice)
        if text is None:
            raise UserError(f"{where} has {kind_of(choice)} as choice {index}; {remedy_for(choice, 'write texts')}")
        text = self._clean(text)
        if not text.strip():
            raise UserError(f"{where} has an empty choice {index}, counted from 0; fill it in, or leave the row out")
        return text

    def _clean(self, text: str) -> str:
        """Remove WikiHow's marks exactly as lm-eval does for HellaSwag."""
        if not self.clean:
            return text
        return re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ")


def _alike(names: Sequence[str]) -> list[str]:
    """Return the names that differ in their last letter or digit alone: ``A, B, C``, ``option1, option2``."""
    families: dict[str, list[str]] = {}
    for name in names:
        if re.fullmatch(r"(.*[^a-zA-Z])?[a-zA-Z]|.*\d", str(name)):
            families.setdefault(name[:-1], []).append(name)
    largest = max(families.values(), key=len, default=[])
    return largest if len(largest) > 1 else []


def fill_blank(
    prompt: str, sentence: str, choices: Sequence[str], gold: int, blank: Blank, where: str, group: str = ""
) -> Item:
    """Return an item whose rows are a sentence with each choice in its first blank, ``_``, as in WinoGrande.

    Args:
        prompt: The text before the sentence.
        sentence: The sentence with a blank.
        choices: The texts that may fill the blank.
        gold: The index of the right choice, from 0.
        blank: The scored part of the sentence.
        where: The name of the row in messages.
        group: The sub-task of the item; empty if there is only one.

    Returns:
        The item, which scores the part of the sentence that `blank` names.

    Raises:
        UserError: The sentence has no blank, or no text after it to score.
    """
    before, mark, after = sentence.partition("_")
    if not mark:
        raise UserError(f"{where} has no blank _ in its sentence; mend the row, or use data.blank=null")
    if blank == "whole":
        return Item(prompt, tuple(before + choice + after for choice in choices), gold, group=group)
    if not after.strip():
        raise UserError(f"{where} has nothing after its blank _; leave the row out, or use data.blank=whole")
    openings = tuple(before + choice for choice in choices)
    # As in lm-eval, a space separates the rest, even if it begins with a punctuation mark.
    return Item(prompt, (after.strip(),) * len(choices), gold, openings=openings, group=group)


def find_gold(answer: Any, choices: Sequence[Any], labels: Sequence[Any] | None, where: str) -> int:
    """Return the place of the right choice, from 0.

    Args:
        answer: The answer in the row.
        choices: The choices in the row.
        labels: The names of the choices that answers use, in order; None for numbers, letters or texts.
        where: The name of the row and of the field in messages.

    Returns:
        The index of the right choice in `choices`.

    Raises:
        UserError: The answer means no choice, or several.
    """
    if answer is None or (isinstance(answer, str) and not answer.strip()):
        raise UserError(f"{where} is empty; fill it in, or leave the row out")
    if labels is not None:
        return _by_label(answer, choices, labels, where)
    index = _index(answer)
    texts = _places(answer, choices)
    if len(texts) > 1:
        raise UserError(f"{where}={answer} is the text of choices {texts}; leave the row out, or give its number")
    meant = {*range(len(choices))} & {*texts, index}
    if len(meant) > 1:
        raise UserError(
            f"{where}={answer} is the text of choice {texts[0]} and the {_kind(answer)} of choice {index}, counted "
            f"from 0; {_convert(answer)}"
        )
    if meant:
        return meant.pop()
    if len(choices) == 2 and _name(answer) in ("false", "true"):  # a cell of a table
        return int(_name(answer) == "true")
    if index is not None:
        raise UserError(
            f"{where}={answer} is out of range of its {len(choices)} choices, counted from 0; mend the row, or where "
            f"they are counted from 1, set data.labels=[{','.join(str(n + 1) for n in range(len(choices)))}]"
        )
    raise UserError(
        f"{where}={answer} is none of its choices; {did_you_mean(str(answer), map(str, choices))} or name another "
        "field with data.answer=…"
    )


def _by_label(answer: Any, choices: Sequence[Any], labels: Sequence[Any], where: str) -> int:
    exact = [index for index, label in enumerate(labels) if str(label) == str(answer)]
    indices = exact or [index for index, label in enumerate(labels) if _name(label) == _name(answer)]
    if len(indices) > 1:
        raise UserError(f"{where}={answer} is the label of choices {indices}; give each its own, or leave the row out")
    if not indices:
        label_list = ", ".join(map(str, labels))
        raise UserError(f"{where}={answer} is none of the labels {label_list}; mend the row, or set data.labels=[…]")
    (index,) = indices
    if index >= len(choices):
        raise UserError(f"{where}={answer} is label {index + 1}, but there are {len(choices)} choices; mend the row")
    return index


def _check_label(answer: Any, choices: Sequence[Any], gold: int, where: str) -> None:
    """Refuse an answer that is the label of one choice and the text of another choice."""
    texts = _places(answer, choices)
    if texts and gold not in texts:
        raise UserError(
            f"{where}={answer} is the text of choice {texts[0]} and the label of choice {gold}, counted from 0; "
            f"{_convert(answer)}, and leave data.labels out"
        )


def _convert(answer: Any) -> str:
    """Return the remedy for answers that could be texts of choices: write them in another form."""
    form = "letters from A" if _kind(answer) == "number" else "numbers from 0"
    return f"convert the answers in the file to {form}"


def _kind(answer: Any) -> str:
    return "number" if isinstance(answer, int) or str(answer).strip().isdigit() else "letter"


def _places(answer: Any, choices: Sequence[Any]) -> list[int]:
    """Return the places of the choices whose text is the answer."""
    return [index for index, choice in enumerate(choices) if _same(choice, answer)]


def _index(answer: Any) -> int | None:
    """Return the answer as a number from 0: false and A are 0, true and B are 1; None if it has no such form."""
    if isinstance(answer, int):
        return int(answer) if answer >= 0 else None
    if isinstance(answer, str):
        name = answer.strip()
        if name.isascii() and name.isdigit():
            return int(name)
        if len(name) == 1 and name.upper() in string.ascii_uppercase:
            return string.ascii_uppercase.index(name.upper())
    return None


def _same(choice: Any, answer: Any) -> bool:
    if isinstance(choice, str) and isinstance(answer, str):
        return choice.strip() == answer.strip()
    return type(choice) is type(answer) and bool(choice == answer)


def _name(label: Any) -> str:
    return str(label).strip().casefold()
