"""Questions about images: rows of a local file that name image files next to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from typing_extensions import override

from raysearch.calibration.batch import Form
from raysearch.calibration.fields import check_prompt, fill, kind_of, remedy_for, take, take_answer, take_text
from raysearch.calibration.formats.base import Format, ImageQuestion
from raysearch.calibration.items import ItemOptions
from raysearch.errors import UserError


@dataclass(frozen=True)
class ImageItemOptions(ItemOptions):
    """The options that draw questions about images.

    Args:
        score: The answer: the tokens before it hold the images' places, which no model predicts.
    """

    score: Literal["answer"] = "answer"


@dataclass(frozen=True)
class ImageTextFormat(Format):
    """Questions about images. A row is never cut, since it would lose places of its images.

    Args:
        image: The field of the image: a path relative to the folder of the data file, or a list of paths.
        question: The field of the question.
        answer: The field of the answer, a text or a number.
        prompt: The text between images and answer, with fields of the row in braces.
        separator: The text between prompt and answer if the model's processor has no chat template.
        group: The field of the sub-task, to draw from each sub-task; None if there is only one.
    """

    image: str = "image"
    question: str = "question"
    answer: str = "answer"
    prompt: str = "{question}"
    separator: str = " "
    group: str | None = None

    offers = frozenset({Form.TEXT})
    draws = ImageItemOptions
    has_images = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_prompt(self.prompt)

    @override
    def read(self, row: Mapping[str, Any], where: str) -> ImageQuestion:
        value = take(row, "image", self.image, where)
        paths = value if isinstance(value, list) and value else [value]
        for path in paths:
            if not isinstance(path, str) or not path.strip():
                kind = f"an empty {kind_of(path).removeprefix('a ')}" if path == [] or path == "" else kind_of(path)
                remedy = remedy_for(path, "write the path of an image, or a list of paths")
                raise UserError(f"{where} holds {kind} in data.image={self.image}; {remedy}")
        return ImageQuestion(
            images=tuple(paths),
            prompt=fill(self.prompt, row, where, question=self.question),
            answer=take_answer(row, "answer", self.answer, where),
            separator=self.separator,
            group="" if self.group is None else take_text(row, "group", self.group, where),
        )
