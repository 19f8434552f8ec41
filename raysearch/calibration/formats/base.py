"""The contract of a format, which turns a row of a data set into a sample as text.

A format is a frozen dataclass whose fields are its keys in ``conf/data/*.yaml``. It handles rows and text, not tokens.
`raysearch.calibration.rows` yields the rows. `raysearch.calibration.windows` and `raysearch.calibration.items` draw
samples. `raysearch.calibration.encoding` turns items into tokens.
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
        prompt: The text before the answer; empty if each choice is a whole text.
        choices: The possible answers; a single one if the question is open.
        gold: The place of the right choice, from 0.
        separator: The text before a choice, scored with it; left out if prompt and opening are empty.
        openings: For each choice, a text between prompt and choice that is not scored; empty if there are none.
        group: The sub-task of the item; empty if there is only one sub-task.
        answer: The text that a generated answer is checked against; None for the gold choice.
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
        thinking: Whether the chat template requests thinking before the answer; None for the template's default.
    """

    messages: tuple[tuple[str, str], ...]
    thinking: bool | None = None


@dataclass(frozen=True)
class Task:
    """A prompt to answer, and the check of the answer.

    Args:
        user: The user's prompt.
        answer: The expected answer and its check; the answer's opening is the end of the prompt.
        system: The system prompt; empty for none.
        chat: Whether the prompt uses the model's chat template; None to use it if the model has one.
        group: The sub-task of the task; empty if there is only one sub-task.
        thinking: Whether the chat template requests thinking before the answer; None for the template's default.
    """

    user: str
    answer: Answer
    system: str = ""
    chat: bool | None = None
    group: str = ""
    thinking: bool | None = None


@dataclass(frozen=True)
class ImageQuestion:
    """A question about images, and its answer.

    Args:
        images: The paths of the images, relative to the folder of the rows' file.
        prompt: The text between images and answer.
        answer: The right answer.
        separator: The text between prompt and answer for a model without a chat template.
        group: The sub-task of the question; empty if there is only one sub-task.
    """

    images: tuple[str, ...]
    prompt: str
    answer: str
    separator: str = " "
    group: str = ""


Sample = Text | Item | Dialogue | Task | ImageQuestion


class Format(Options, ABC):
    """Reads the rows of a data set.

    Attributes:
        offers: The forms that its samples can take; an objective needs one of them.
        draws: The class of the options that draw samples: `WindowOptions` for texts, `ItemOptions` for all others.
        needs: The condition that a row must meet to make a sample, for the message if no row meets it; empty if every
            row makes a sample.
        has_images: Whether its samples are instances of `ImageQuestion`, which the model's processor encodes.
    """

    section = "data"
    offers: ClassVar[frozenset[Form]]
    draws: ClassVar[type]
    needs: ClassVar[str] = ""
    has_images: ClassVar[bool] = False

    @abstractmethod
    def read(self, row: Mapping[str, Any], where: str) -> Sample | None:
        """Read a row.

        Args:
            row: The row's fields.
            where: The name of the row in messages: ``row 17 of data.path=items.jsonl``.

        Returns:
            The sample; None for a row that is skipped, because it is too short or because the options exclude it.

        Raises:
            UserError: The row cannot be read in this format.
        """
