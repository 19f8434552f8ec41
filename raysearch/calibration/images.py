"""Reads image files, and turns questions about images into rows of tokens by the model's own processor."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from raysearch.calibration.batch import Batch, RowImages, image_digest
from raysearch.calibration.dialogues import render
from raysearch.calibration.encoding import Wording, n_tokens_after, tokenise
from raysearch.calibration.formats.base import Dialogue, ImageQuestion
from raysearch.calibration.items import Located
from raysearch.calibration.packing import n_shared
from raysearch.errors import UserError
from raysearch.text.sentences import first_line

_TOKENS = ("input_ids", "attention_mask")  # what a processor returns besides the images; a row has no padding


@dataclass(frozen=True)
class ImageRow:
    """A question about images in tokens."""

    ids: tuple[int, ...]  #: with the places of the images
    scored: tuple[bool, ...]  #: whether a token is part of the answer
    images: RowImages


def check_images(question: ImageQuestion, folder: Path, where: str) -> None:
    """Refuse a question whose image files do not exist; they are not read.

    Args:
        question: The question.
        folder: The folder that the paths of images are relative to.
        where: The name of the row in messages: ``row 7``.

    Raises:
        UserError: A file does not exist.
    """
    for name in question.images:
        if not (folder / name).is_file():
            raise UserError(f"{where} names the image {name}, which is no file in {folder}; mend the path")


def encode_questions(samples: Sequence[Located], seq_len: int, processor: Any, folder: Path) -> Batch:
    """Read the images of questions, and encode each question by the model's processor.

    Args:
        samples: The questions.
        seq_len: The most tokens of a row, with the places of its images.
        processor: The model's processor, of transformers.
        folder: The folder that the paths of images are relative to.

    Returns:
        The rows in order of their length, with their images. The tokens of the answers are scored.

    Raises:
        UserError: An image is missing or unreadable, a row is too long, or the processor refuses a row.
    """
    rows = []
    for located in samples:
        question = located.sample
        assert isinstance(question, ImageQuestion), "the format has images"
        check_images(question, folder, located.where)
        pictures = [_read_image(folder / name, name, located.where) for name in question.images]
        row = encode_question(question, pictures, processor, located.where)
        if len(row.ids) > seq_len:
            raise UserError(
                f"{located.where} has {len(row.ids)} tokens with its images, more than data.seq_len={seq_len}, and a "
                f"cut row loses places of its images; use data.seq_len={len(row.ids)} or more, or smaller images"
            )
        rows.append(row)
    rows.sort(key=lambda row: (len(row.ids), row.ids, row.scored, image_digest(row.images)))
    return Batch.of([row.ids for row in rows], [row.scored for row in rows], images=tuple(row.images for row in rows))


def encode_question(question: ImageQuestion, pictures: Sequence[Any], processor: Any, where: str) -> ImageRow:
    """Encode a question as the model's processor does, by its chat template if it has one.

    The processor writes as many places into the text as an image needs. The tokens behind the last image stay as the
    tokenizer makes them, so the answer is found by counting from the end.

    Args:
        question: The question and its answer.
        pictures: The images, as the processor takes them: of Pillow, or uint8 arrays [height, width, 3].
        processor: The model's processor, of transformers.
        where: The name of the row in messages: ``row 7``.

    Returns:
        The row.

    Raises:
        UserError: The processor has no token for an image, refuses the row, or changes its answer.
    """
    tokenizer = processor.tokenizer
    wording = _wording(question, processor, where)
    try:
        encoding = processor(
            text=[wording.text], images=[*pictures], add_special_tokens=wording.special, return_tensors="pt"
        )
        arrays = {name: np.asarray(values) for name, values in encoding.items()}
    except Exception as error:  # whatever a model's own code raises
        raise UserError(
            f"{where} is refused by the model's processor ({type(error).__name__}: {first_line(error)}); mend the row, "
            "or leave it out"
        ) from error
    ids = arrays["input_ids"][0].tolist()
    plain_ids, spans = tokenise(wording, tokenizer)
    n_after = n_tokens_after(wording, tokenizer)
    end = len(ids) - n_after
    first = next((place for place, span in enumerate(spans) if span >= 0), len(spans))
    n_equal = n_shared(ids[:end][::-1], plain_ids[::-1])
    if not 0 < len(spans) - first <= n_equal:
        raise UserError(
            f"{where} has an answer that the model's processor drops or changes; mend the row, or leave it out"
        )
    scored = [False] * (end - len(spans) + first) + [span >= 0 for span in spans[first:]] + [False] * n_after
    images = {name: values for name, values in arrays.items() if name not in _TOKENS}
    return ImageRow(tuple(ids), tuple(scored), images)


def _wording(question: ImageQuestion, processor: Any, where: str) -> Wording:
    """Return a question with its answer as text, with one placeholder for each image."""
    template = getattr(processor, "chat_template", None)
    if template:
        tokenizer = copy.copy(processor.tokenizer)
        tokenizer.chat_template = template
        dialogue = Dialogue((("user", question.prompt), ("assistant", question.answer)))
        return Wording(*render(dialogue, tokenizer, where, len(question.images)), special=False)
    token = getattr(processor, "image_token", None)
    if token is None:
        raise UserError(
            f"the model's processor ({type(processor).__name__}) has neither a chat template nor a token for images, "
            "so no text can name the place of an image; use data of text"
        )
    before = str(token) * len(question.images) + question.prompt
    text = before + question.separator + question.answer
    return Wording(text, ((len(before.rstrip(" ")), len(text)),))


def _read_image(file: Path, name: str, where: str) -> Any:
    """Read an image as people see it: turned as its camera says, in three colours."""
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise UserError(
            "data.type=image_text needs Pillow, which is not installed; run: pip install 'raysearch-llm[images]'"
        ) from error
    try:
        with Image.open(file) as image:
            return ImageOps.exif_transpose(image).convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:  # as Pillow documents them
        raise UserError(
            f"{where} names the image {name}, which cannot be read ({first_line(error)}); mend the file, or leave the "
            "row out"
        ) from error
