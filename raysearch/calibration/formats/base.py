"""The contract of a format: from a row of a data set to a sample in words.

A format is a frozen dataclass whose fields are its keys in ``conf/data/*.yaml``; it knows rows and text, nothing of
tokens. Where rows come from is `raysearch.calibration.rows`, how samples are drawn `raysearch.calibration.windows` and
`raysearch.calibration.items`, how items become tokens `raysearch.calibration.encoding`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from raysearch.calibration.batch import Form


@dataclass(frozen=True)
class Text:
    """A document."""

    text: str


@dataclass(frozen=True)
class Item:
    """A question and its possible answers. Choice c is asked as prompt + opening c + separator + choice c.

    Args:
        prompt: What comes before the answer; empty where each choice is a whole text.
        choices: The answers; one where the question is open.
        gold: Which of them is right.
        separator: What stands before a choice and is scored with it, unless nothing comes before.
        openings: What stands between prompt and each choice and is not scored, where the choices differ there and not
            in themselves; empty for nothing.
        group: The sub-task it belongs to; empty where there is only one.
        answer: What a generated answer is checked against, where that is not the gold choice.
    """

    prompt: str
    choices: tuple[str, ...]
    gold: int
    separator: str = " "
    openings: tuple[str, ...] = ()
    group: str = ""
    answer: str | None = None


@dataclass(frozen=True)
class Dialogue:
    """A conversation.

    Args:
        messages: Role (``system``, ``user``, ``assistant``) and content of each turn, in order.
    """

    messages: tuple[tuple[str, str], ...]


Sample = Text | Item | Dialogue


class Format(Protocol):
    """How the rows of a data set are read."""

    offers: ClassVar[frozenset[Form]]  # what objectives can be computed on its samples
    draws: ClassVar[type]  # how samples are drawn of it: `WindowOptions` of texts, `ItemOptions` of the others

    def read(self, row: Mapping[str, Any], where: str) -> Sample | None:
        """Reads a row.

        Args:
            row: The row's fields.
            where: Names the row in messages: ``row 17 of data.path=items.jsonl``.

        Returns:
            The sample; None where nothing is wrong with the row but it is too short to make one, so that it is skipped.

        Raises:
            UserError: The row cannot be read so.
        """
        ...
