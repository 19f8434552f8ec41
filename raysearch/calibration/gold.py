"""Which choice an answer means: its number, its letter, its label or its text."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any, Literal

from raysearch.errors import UserError, did_you_mean

#: How an answer without labels is read: ``index``, from 0, or as a letter from A; ``text``, that of a choice; ``auto``,
#: whichever of the two fits.
AnswerAs = Literal["auto", "index", "text"]


def find_gold(
    answer: Any, choices: Sequence[Any], labels: Sequence[Any] | None, answer_as: AnswerAs, where: str
) -> int:
    """The place of the right choice, from 0.

    Args:
        answer: What the row says.
        choices: The choices, as the row has them.
        labels: What answers call the choices, in order; None for the choices' numbers, letters or texts.
        answer_as: How an answer without labels is read.
        where: Names the row and the field in messages.

    Raises:
        UserError: The answer means no choice, or more than one.
    """
    if answer is None or (isinstance(answer, str) and not answer.strip()):
        raise UserError(f"{where} is empty; fill it in, or leave the row out")
    if labels is not None:
        return _by_label(answer, choices, labels, where)
    index = _index(answer) if answer_as != "text" else None
    texts = [place for place, choice in enumerate(choices) if _same(choice, answer)] if answer_as != "index" else []
    if len(texts) > 1:
        raise UserError(f"{where}={answer} is the text of choices {texts}; leave the row out, or give its number")
    if index is not None and index < len(choices):
        if texts and texts[0] != index:
            raise UserError(
                f"{where}={answer} is the text of choice {texts[0]} and the number of choice {index}, counted from 0; "
                "say which with data.answer_as=text or data.answer_as=index"
            )
        return index
    if texts:
        return texts[0]
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
    known = [_name(label) for label in labels]
    if _name(answer) not in known:
        named = ", ".join(map(str, labels))
        raise UserError(
            f"{where}={answer} is none of the labels {named}; mend the row, or set data.labels=[…] or "
            "data.answer_as=text"
        )
    place = known.index(_name(answer))
    if place >= len(choices):
        raise UserError(f"{where}={answer} is label {place + 1}, but there are {len(choices)} choices; mend the row")
    return place


def _index(answer: Any) -> int | None:
    """The answer as a number from 0: false and true are 0 and 1, A and B too."""
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
