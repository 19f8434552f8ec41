"""The contract of a format: it turns a row of a data set into a sample in words.

A format is a frozen dataclass whose fields are its keys in ``conf/data/*.yaml``. It knows rows and text, but no tokens.
Rows come from `raysearch.calibration.rows`; `raysearch.calibration.windows` and `raysearch.calibration.items` draw
samples; `raysearch.calibration.encoding` turns items into tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from raysearch.calibration.batch import Form
from raysearch.core.options import Options
from raysearch.generation.answer import Answer


@dataclass(frozen=True)
class Text:
    """A document."""

    text: str


@dataclass(frozen=True)
class Item:
    """A question and its possible answers. The text of choice c is prompt + opening c + separator + choice c.

    Args:
        prompt: The text before the answer; empty where each choice is a whole text.
        choices: The answers; one where the question is open.
        gold: Which of them is right.
        separator: The text before a choice, scored with it; left out where prompt and opening are empty.
        openings: A text between the prompt and each choice that is not scored, for choices that differ there; or empty.
        group: The sub-task it belongs to; empty where there is only one.
        answer: The text that a generated answer is checked against, if it is not the gold choice.
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
        thinking: As of a `Task`.
    """

    messages: tuple[tuple[str, str], ...]
    thinking: bool | None = None


@dataclass(frozen=True)
class Task:
    """Something to write, and how that is checked.

    Args:
        user: What is asked.
        answer: What is expected; its opening stands at the end of the prompt.
        system: The system prompt; empty for none.
        chat: Whether it is asked in the model's chat template; None where the model has one.
        group: The sub-task it belongs to; empty where there is only one.
        thinking: Whether the chat template asks for thinking before the answer; None for its own way.
    """

    user: str
    answer: Answer
    system: str = ""
    chat: bool | None = None
    group: str = ""
    thinking: bool | None = None


Sample = Text | Item | Dialogue | Task


class Format(Options, ABC):
    """Reads the rows of a data set.

    Attributes:
        offers: The forms that its samples can take, each for other objectives.
        draws: The options by which samples are drawn: `WindowOptions` for texts, `ItemOptions` for the others.
        needs: What a row needs to make a sample, for the message where none does; empty where every row makes one.
    """

    section = "data"
    offers: ClassVar[frozenset[Form]]
    draws: ClassVar[type]
    needs: ClassVar[str] = ""

    @abstractmethod
    def read(self, row: Mapping[str, Any], where: str) -> Sample | None:
        """Read a row.

        Args:
            row: The row's fields.
            where: Names the row in messages: ``row 17 of data.path=items.jsonl``.

        Returns:
            The sample; None for a row that is skipped: too short to make one, or left out by the user's wish.

        Raises:
            UserError: The row cannot be read in this format.
        """
