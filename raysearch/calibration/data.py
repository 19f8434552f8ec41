"""A data set: its rows, the format that reads them, and the options by which samples are drawn."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from raysearch.calibration.batch import Batch, Form
from raysearch.calibration.encoding import encode_items
from raysearch.calibration.formats.base import Format, ImageQuestion, Sample, Text
from raysearch.calibration.images import check_images, encode_questions
from raysearch.calibration.items import DrawnItems, ItemOptions, Located, draw_items
from raysearch.calibration.overlap import SeenTexts
from raysearch.calibration.rows import Rows
from raysearch.calibration.windows import Tokenizer, WindowOptions, draw_rows
from raysearch.core.paths import as_path
from raysearch.errors import UserError

#: Data sets that offer a form, for messages.
_DATA_OF_FORM = {
    Form.TEXT: "data=sotu or data=file",
    Form.CHOICES: "data=commonsense170k, data=multiple_choice or, made of any text, data=continuation",
    Form.PROMPT: "data=gsm8k or data=questions",
}

_EXTRA_FACTOR = 4  # cut this many times the windows that are needed, if used ones are left out afterwards
_RECORDED_UNKNOWN_SHARE = 0.5  # record the share of unknown tokens from here on: the tokenizer does not fit the text


@dataclass(frozen=True)
class Drawn:
    """The drawn samples in tokens."""

    batch: Batch
    description: dict[str, Any]  #: the source, the draw and what was left out: plain values for the records


@dataclass(frozen=True)
class Used:
    """The samples that other draws of a data set have used."""

    texts: SeenTexts  #: for windows of text
    samples: frozenset[Sample]  #: items, dialogues or tasks as text


@dataclass(frozen=True)
class Data:
    """A data set.

    Args:
        rows: The source of the rows.
        format: Turns a row into a sample.
        draw: The options of the draw: an instance of ``format.draws``.
        used: The samples to leave out, because another draw has used them; None to leave out nothing.
    """

    rows: Rows
    format: Format
    draw: WindowOptions | ItemOptions
    used: Used | None = None

    def check(self) -> None:
        """Refuse rows that are missing or that the format cannot read.

        This reads at most the first row and downloads nothing.

        Raises:
            UserError: The rows are missing or unreadable, or one document cannot make several items.
        """
        if self.format.has_images and self.rows.path is None:
            raise UserError(
                "data.type=image_text reads images by their paths from the folder of a local file, so it needs "
                "data.path=…; write the rows and their images there"
            )
        if (first := self.rows.check()) is not None:
            where, row = first
            sample = self.format.read(row, where)
            if isinstance(sample, ImageQuestion):
                check_images(sample, self._folder, where)
        if self.rows.is_one_text and isinstance(self.draw, ItemOptions) and 1 < self.draw.most < math.inf:
            raise UserError(
                f"data.path={self.rows.path} is one document, and a document makes one of data.samples="
                f"{self.draw.samples} items; put its chapters into files of a folder, and give that folder"
            )

    def check_form(self, form: Form) -> None:
        """Refuse an objective that needs a form which the format does not offer."""
        if form not in self.format.offers:
            kind = type(self.format).__module__.rpartition(".")[2]
            offered = " and ".join(sorted(offered_form.value for offered_form in self.format.offers))
            raise UserError(
                f"this objective needs {form.value}, but data.type={kind} offers only {offered}; "
                f"use {_DATA_OF_FORM[form]}"
            )

    def check_length(self, max_positions: int | None) -> None:
        """Refuse a `seq_len` above the model's number of positions; None for a model without a limit."""
        if max_positions is not None and self.draw.seq_len > max_positions:
            raise UserError(
                f"data.seq_len={self.draw.seq_len} is longer than the {max_positions} positions of the model; "
                f"use {max_positions} or less"
            )

    def samples(
        self, tokenizer: Tokenizer, form: Form, max_positions: int | None = None, processor: Any = None
    ) -> Drawn:
        """Draw the samples in the form that an objective needs. Call `check` first: its messages are better.

        Args:
            tokenizer: A transformers tokenizer.
            form: The form that the objective needs.
            max_positions: The model's number of positions; None if it has no limit.
            processor: The model's processor, of transformers; None for data without images.

        Returns:
            The batch of all samples, and the description of the draw.

        Raises:
            UserError: The form is not offered, rows are too long or unreadable, or the data holds too few samples.
        """
        self.check_form(form)
        self.check_length(max_positions)
        draw_options = {key: getattr(self.draw, key) for key in ("samples", "seq_len", "sampling", "seed")}
        description = {**self.rows.describe(), **draw_options, **({"unused": True} if self.used else {})}
        if isinstance(self.draw, WindowOptions):
            rows = self._windows(tokenizer, self.draw)
            batch = Batch.of(rows, [[False, *[True] * (len(ids) - 1)] for ids in rows])
        else:
            drawn = self.items()
            if self.format.has_images:
                batch = encode_questions(drawn.samples, self.draw.seq_len, processor, self._folder)
                n_truncated = 0  # longer rows are refused
            else:
                batch, n_truncated = encode_items(drawn.samples, form, self.draw, tokenizer)
            if form is Form.TEXT:
                description["score"] = self.draw.score
            if drawn.groups:
                description |= {"balance": self.draw.balance, "groups": dict(drawn.groups)}
            description |= {"rows_read": drawn.rows_read, "duplicates": drawn.duplicates}
            if drawn.skipped:
                description["skipped"] = drawn.skipped
            description["truncated"] = n_truncated
        real_ids = batch.input_ids if batch.attention_mask is None else batch.input_ids[batch.attention_mask]
        unknown_share = float(np.mean(real_ids == getattr(tokenizer, "unk_token_id", None)))
        if unknown_share >= _RECORDED_UNKNOWN_SHARE:
            description["unknown"] = round(unknown_share, 3)
        return Drawn(batch, description)

    def items(self) -> DrawnItems:
        """Draw items, dialogues or tasks, not yet in tokens."""
        assert isinstance(self.draw, ItemOptions), "windows of text are drawn in tokens"
        return draw_items(self._samples(), self.draw, self.format.needs)

    @property
    def _folder(self) -> Path:
        """The folder of the local file that has the rows."""
        assert self.rows.path is not None, "checked"
        return as_path("data.path", self.rows.path).parent

    def _windows(self, tokenizer: Any, draw: WindowOptions) -> list[list[int]]:
        """Draw windows of text in tokens, without those that share text with the used samples."""
        if self.used is None:
            return draw_rows(self._documents(), tokenizer, draw)
        extra_draw = replace(draw, at_most=draw.at_most and _EXTRA_FACTOR * draw.at_most)
        windows = draw_rows(self._documents(), tokenizer, extra_draw)
        unused = [ids for ids in windows if not self.used.texts.shared(tokenizer.decode(ids))]
        if not unused:
            raise UserError(f"all {len(windows)} windows of the data share text with samples that were used before")
        return unused[: draw.at_most]

    def _samples(self) -> Iterator[Located | None]:
        """Yield each row's sample, without used ones; None for a row that makes no sample."""
        for where, row in self.rows.read():
            sample = self.format.read(row, where)
            if self.used is not None and sample in self.used.samples:
                continue
            yield None if sample is None else Located(where, sample)

    def _documents(self) -> Iterator[str]:
        for located in self._samples():
            assert located is not None and isinstance(located.sample, Text), "windows are cut from text"
            yield located.sample.text
