"""Sentences with a blank, ``_``, that the choices fill in: WinoGrande."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from raysearch.calibration.formats.base import Item
from raysearch.errors import UserError

#: What is scored of a filled-in sentence: the whole of it, as in PuDDing; or what follows the blank, given what comes
#: before it and the choice (``partial``), as in lm-eval.
Blank = Literal["whole", "partial"]


def fill_blank(
    prompt: str, sentence: str, choices: Sequence[str], gold: int, blank: Blank, where: str, group: str = ""
) -> Item:
    """An item whose rows are the sentence with each choice in its first blank.

    Args:
        prompt: What comes before the sentence.
        sentence: Has a ``_``.
        choices: What may fill it.
        gold: Which of them does.
        blank: What is scored.
        where: Names the row in messages.
        group: The sub-task.

    Raises:
        UserError: There is no blank, or nothing after it to score.
    """
    before, mark, after = sentence.partition("_")
    if not mark:
        raise UserError(f"{where} has no blank _ in its sentence; mend the row, or use data.blank=null")
    if blank == "whole":
        return Item(prompt, tuple(before + choice + after for choice in choices), gold, group=group)
    if not after.strip():
        raise UserError(f"{where} has nothing after its blank _; leave the row out, or use data.blank=whole")
    openings = tuple(before + choice for choice in choices)
    # As in lm-eval: the rest is parted by a space, whatever it begins with.
    return Item(prompt, (after.strip(),) * len(choices), gold, openings=openings, group=group)
