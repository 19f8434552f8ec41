"""Samples as the model sees them: token ids, scored tokens, choices and answers.

Batches hold NumPy arrays alone, so that processes can exchange a calibration without torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from raysearch.generation.answer import Answer

#: What a processor makes of a row with images, besides its tokens, by the name of the model's argument:
#: ``pixel_values``, ``image_grid_thw`` … The arrays have the shapes that the model's forward takes for this row alone.
RowImages = Mapping[str, npt.NDArray[Any]]


class Form(Enum):
    """The form of a sample. An objective needs one form; a data format offers one or more."""

    TEXT = "text"  #: one row, of which some tokens are scored
    CHOICES = "items with choices"  #: one row per choice of an item; the choice's tokens are scored
    PROMPT = "questions with an answer"  #: one row to continue, and the expected answer


@dataclass(frozen=True)
class Choices:
    """The assignment of R rows to items. The rows of an item are adjacent."""

    item: npt.NDArray[np.int64]  #: the item of each row, [R], from 0 and ascending by 0 or 1
    gold: npt.NDArray[np.bool_]  #: whether a row is the right choice, [R]; true for one row of each item
    characters: npt.NDArray[np.int64]  #: length of each choice's text in characters, [R]


@dataclass(frozen=True)
class Inputs:
    """The input of a model: P rows of L tokens, which are the rows of a batch, plain or packed."""

    input_ids: npt.NDArray[np.int64]  #: [P, L]
    #: Whether a token is real, [P, L]; or the positions that each token attends to, [P, L, L]; None if all tokens are
    #: real and attend to all tokens before them.
    attention_mask: npt.NDArray[np.bool_] | None
    #: The position of a token in its row before packing, [P, L]; None for 0 … L - 1.
    position_ids: npt.NDArray[np.int64] | None
    #: For each scored token, in the batch's order: the index of the state that predicts it, in the flattened [P * L],
    #: [n].
    predictors: npt.NDArray[np.int64]
    images: tuple[RowImages, ...] | None = None  #: of each row, [P]; None if the rows have no images

    @property
    def n_tokens(self) -> int:
        """Tokens that each layer computes, padding included."""
        return self.input_ids.size

    @property
    def lengths(self) -> npt.NDArray[np.int64] | None:
        """Real tokens of each row, int64, [P]; None if the rows are packed."""
        if self.attention_mask is None:
            return np.full(len(self.input_ids), self.input_ids.shape[1])
        return self.attention_mask.sum(axis=1).astype(np.int64) if self.attention_mask.ndim == 2 else None

    def rows(self, rows: npt.NDArray[np.int64], n_tokens: int) -> Inputs:
        """Return rows of the same length without padding, and without predictors.

        Args:
            rows: Their indices, int64, [R].
            n_tokens: The real tokens of each of them.

        Returns:
            The input [R, n_tokens].
        """
        images = None if self.images is None else tuple(self.images[row] for row in rows)
        return Inputs(self.input_ids[rows, :n_tokens], None, None, np.zeros(0, np.int64), images)


@dataclass(frozen=True)
class Batch:
    """R rows of T tokens, padded on the right. A sample is a row or, if there are choices, all rows of an item."""

    input_ids: npt.NDArray[np.int64]  #: [R, T]
    #: Whether the prediction of a token from those before it counts in the loss, [R, T]; false for the first token.
    scored: npt.NDArray[np.bool_]
    #: Whether a token is real, not padding, [R, T]; None if all tokens are real.
    attention_mask: npt.NDArray[np.bool_] | None = None
    choices: Choices | None = None  #: the items that the rows belong to; None if each row is a sample
    answers: tuple[Answer, ...] | None = None  #: the expected answer to each row; None if nothing is generated
    images: tuple[RowImages, ...] | None = None  #: of each row, [R]; None if the rows have no images

    @property
    def n_samples(self) -> int:
        """B, the number of samples: rows, or items if there are choices."""
        return int(self.sample_of_row[-1]) + 1 if len(self.input_ids) else 0

    @cached_property
    def sample_of_row(self) -> npt.NDArray[np.int64]:
        """The sample that each row belongs to, int64, [R]."""
        return np.arange(len(self.input_ids)) if self.choices is None else self.choices.item

    @cached_property
    def n_scored(self) -> int:
        """Scored tokens of all samples."""
        return int(self.scored.sum())

    @cached_property
    def scored_per_row(self) -> npt.NDArray[np.int64]:
        """Scored tokens, int64, [R]."""
        return self.scored.sum(axis=1).astype(np.int64)

    @cached_property
    def scored_per_sample(self) -> npt.NDArray[np.int64]:
        """Scored tokens, int64, [B]."""
        return np.bincount(self.sample_of_row, self.scored_per_row, self.n_samples).astype(np.int64)

    @cached_property
    def row_of_token(self) -> npt.NDArray[np.int64]:
        """The row of each scored token, int64, [n]."""
        return np.nonzero(self.scored)[0]

    @cached_property
    def targets(self) -> npt.NDArray[np.int64]:
        """The scored tokens' ids, row by row, int64, [n]."""
        return self.input_ids[self.scored]

    @cached_property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Real tokens of each row, int64, [R]."""
        if self.attention_mask is None:
            return np.full(len(self.input_ids), self.input_ids.shape[1])
        return self.attention_mask.sum(axis=1).astype(np.int64)

    @cached_property
    def n_tokens(self) -> int:
        """Real tokens of all rows."""
        return int(self.lengths.sum())

    @property
    def keys(self) -> list[bytes]:
        """A key of each sample, [B]: its tokens, those that are scored, and its images. Padding does not change it."""
        keys = [b""] * self.n_samples
        for sample, ids, scored, length in zip(
            self.sample_of_row.tolist(), self.input_ids, self.scored, self.lengths.tolist(), strict=True
        ):
            keys[sample] += ids[:length].tobytes() + scored[:length].tobytes()
        for row, images in enumerate(self.images or ()):
            keys[self.sample_of_row[row]] += image_digest(images)
        return keys

    @property
    def inputs(self) -> Inputs:
        """The rows as the input of a model, not packed."""
        return Inputs(self.input_ids, self.attention_mask, None, np.flatnonzero(self.scored) - 1, self.images)

    def beginnings(self, n_tokens: int) -> Self:
        """Return the first tokens of each row."""
        return replace(
            self,
            input_ids=self.input_ids[:, :n_tokens],
            scored=self.scored[:, :n_tokens],
            attention_mask=None if self.attention_mask is None else self.attention_mask[:, :n_tokens],
        )

    def at_most(self, n_samples: int | None) -> list[Self]:
        """Return the samples in order, in batches of at most `n_samples`; None for one batch."""
        if n_samples is None or n_samples >= self.n_samples:
            return [self]
        return [self.samples(start, start + n_samples) for start in range(0, self.n_samples, n_samples)]

    def samples(self, start: int, stop: int, step: int = 1) -> Self:
        """Return a slice of the samples, without the padding that none of them needs.

        Args:
            start: The first sample.
            stop: The sample after the last one.
            step: The distance from one sample to the next.

        Returns:
            The batch of these samples. Its rows are as long as its longest one.
        """
        number, remainder = np.divmod(self.sample_of_row - start, step)
        rows = (number >= 0) & (self.sample_of_row < stop) & (remainder == 0)
        longest = int(self.lengths[rows].max(initial=0))
        mask = None if self.attention_mask is None else self.attention_mask[rows, :longest]
        choices = self.choices
        if choices is not None:
            choices = Choices(number[rows], choices.gold[rows], choices.characters[rows])
        return replace(
            self,
            input_ids=self.input_ids[rows, :longest],
            scored=self.scored[rows, :longest],
            attention_mask=None if mask is None or mask.all() else mask,
            choices=choices,
            answers=None if self.answers is None else self.answers[start:stop:step],
            images=None if self.images is None else tuple(self.images[row] for row in np.flatnonzero(rows)),
        )

    @classmethod
    def of(
        cls,
        rows: Sequence[Sequence[int]],
        scored: Sequence[Sequence[bool]],
        choices: Choices | None = None,
        answers: tuple[Answer, ...] | None = None,
        images: tuple[RowImages, ...] | None = None,
    ) -> Self:
        """Return a batch of rows of any length, padded with token 0, which no token attends to.

        Args:
            rows: The token ids of each row.
            scored: Whether each token of each row is scored.
            choices: The items that the rows belong to; None if each row is a sample.
            answers: The expected answer to each row; None if nothing is generated.
            images: The images of each row; None if the rows have none.

        Returns:
            The batch, [R, T], with T the length of the longest row. It has no attention mask if all rows are that long.
        """
        shape = len(rows), max(map(len, rows), default=0)
        padded_ids = np.zeros(shape, np.int64)
        padded_scored = np.zeros(shape, np.bool_)
        real = np.zeros(shape, np.bool_)
        for index, (row_ids, row_scored) in enumerate(zip(rows, scored, strict=True)):
            length = len(row_ids)
            padded_ids[index, :length] = row_ids
            padded_scored[index, :length] = row_scored
            real[index, :length] = True
        return cls(padded_ids, padded_scored, None if real.all() else real, choices, answers, images)


def array_bytes(array: npt.NDArray[Any]) -> tuple[bytes, bytes]:
    """Return the bytes of an array's shape and of its values, little-endian on every machine."""
    return repr(array.shape).encode(), array.astype(array.dtype.newbyteorder("<")).tobytes()


def image_digest(images: RowImages) -> bytes:
    """Return a digest of a row's images, 32 bytes: of the names, the types and the values of all arrays."""
    digest = hashlib.sha256()
    for name, array in sorted(images.items()):
        for part in (name.encode(), array.dtype.name.encode(), *array_bytes(array)):
            digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()
