"""Samples as the model sees them: token ids, scored tokens, choices and answers.

Pure NumPy, so that a calibration travels between processes without torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt

from raysearch.generation.answer import Answer


class Form(Enum):
    """The form of a sample: an objective needs one, and data offers some."""

    TEXT = "text"  #: one row, of which some tokens are scored
    CHOICES = "items with choices"  #: one row per choice of an item; the choice's tokens are scored
    PROMPT = "questions with an answer"  #: one row to continue, and the expected answer


@dataclass(frozen=True)
class Choices:
    """How R rows make items; the rows of an item follow each other."""

    item: npt.NDArray[np.int64]  #: the item of each row, [R], from 0 and ascending by 0 or 1
    gold: npt.NDArray[np.bool_]  #: whether a row is the right choice, [R]; one of each item's rows is
    characters: npt.NDArray[np.int64]  #: length of each choice's text, [R]


@dataclass(frozen=True)
class Inputs:
    """The input of a model: the rows of a batch, as they are or packed."""

    input_ids: npt.NDArray[np.int64]  #: [P, L]
    #: Whether a token is real, [P, L]; or the positions that each one attends to, [P, L, L]; None where all tokens are
    #: real and attend to those before them.
    attention_mask: npt.NDArray[np.bool_] | None
    position_ids: npt.NDArray[np.int64] | None  #: the place of a token in its own row, [P, L]; None for 0 … L - 1
    #: Position in the flattened [P * L] of the state that predicts each scored token of the batch, in its order, [n].
    predictors: npt.NDArray[np.int64]

    @property
    def n_tokens(self) -> int:
        """Tokens that each layer computes, padding included."""
        return self.input_ids.size

    @property
    def lengths(self) -> npt.NDArray[np.int64] | None:
        """Real tokens of each row, int64, [P]; None where rows are packed."""
        if self.attention_mask is None:
            return np.full(len(self.input_ids), self.input_ids.shape[1])
        return self.attention_mask.sum(axis=1).astype(np.int64) if self.attention_mask.ndim == 2 else None


@dataclass(frozen=True)
class Batch:
    """R rows of T tokens, padded on the right. A sample is a row or, where there are choices, all rows of an item."""

    input_ids: npt.NDArray[np.int64]  #: [R, T]
    #: Whether a token counts in the loss as a prediction from those before it, [R, T]; never the first.
    scored: npt.NDArray[np.bool_]
    attention_mask: npt.NDArray[np.bool_] | None = None  #: whether a token is real, not padding, [R, T]; None: all are
    choices: Choices | None = None  #: how the rows make items; None where each row is a sample
    answers: tuple[Answer, ...] | None = None  #: the expected answer to each row; None where nothing is generated

    @property
    def n_samples(self) -> int:
        """B, the rows or the items."""
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
        """The tokens of each sample, and which are scored: equal for equal samples, whatever the padding, [B]."""
        keys = [b""] * self.n_samples
        for sample, ids, scored, length in zip(
            self.sample_of_row.tolist(), self.input_ids, self.scored, self.lengths.tolist(), strict=True
        ):
            keys[sample] += ids[:length].tobytes() + scored[:length].tobytes()
        return keys

    @property
    def inputs(self) -> Inputs:
        """The rows as they are."""
        return Inputs(self.input_ids, self.attention_mask, None, np.flatnonzero(self.scored) - 1)

    def beginnings(self, n_tokens: int) -> Self:
        """Return the first tokens of each row."""
        mask = None if self.attention_mask is None else self.attention_mask[:, :n_tokens]
        ids, scored = self.input_ids[:, :n_tokens], self.scored[:, :n_tokens]
        return replace(self, input_ids=ids, scored=scored, attention_mask=mask)

    def at_most(self, n_samples: int | None) -> list[Self]:
        """Return the samples in order, in batches of at most `n_samples`; None for one batch."""
        if n_samples is None or n_samples >= self.n_samples:
            return [self]
        return [self.samples(start, start + n_samples) for start in range(0, self.n_samples, n_samples)]

    def samples(self, start: int, stop: int, step: int = 1) -> Self:
        """Return every `step`-th of samples `start` … `stop` - 1, without the padding that none of them needs."""
        number, between = np.divmod(self.sample_of_row - start, step)
        rows = (number >= 0) & (self.sample_of_row < stop) & (between == 0)
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
        )

    @classmethod
    def of(
        cls,
        rows: Sequence[Sequence[int]],
        scored: Sequence[Sequence[bool]],
        choices: Choices | None = None,
        answers: tuple[Answer, ...] | None = None,
    ) -> Self:
        """Return a batch of rows of any length, padded with token 0, which nothing attends to."""
        shape = len(rows), max(map(len, rows), default=0)
        ids, counts, real = np.zeros(shape, np.int64), np.zeros(shape, np.bool_), np.zeros(shape, np.bool_)
        for index, (row, marks) in enumerate(zip(rows, scored, strict=True)):
            ids[index, : len(row)], counts[index, : len(row)], real[index, : len(row)] = row, marks, True
        return cls(ids, counts, None if real.all() else real, choices, answers)
