"""Data: rows, the format that reads them, and the options that draw samples."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from raysearch.calibration.batch import Batch, Form
from raysearch.calibration.encoding import encode_items
from raysearch.calibration.formats.base import Format, Sample, Text
from raysearch.calibration.items import DrawnItems, ItemOptions, Located, draw_items
from raysearch.calibration.overlap import SeenTexts
from raysearch.calibration.rows import Rows
from raysearch.calibration.windows import Tokenizer, WindowOptions, draw_rows
from raysearch.errors import UserError

#: Data to use instead, by the form that an objective needs.
_INSTEAD = {
    Form.TEXT: "data=sotu or data=file",
    Form.CHOICES: "data=commonsense170k, data=multiple_choice or, made of any text, data=continuation",
    Form.PROMPT: "data=gsm8k or data=questions",
}

_MORE = 4  # windows: so many times those that are wanted are cut, where some are left out afterwards
_MOSTLY = 0.5  #: so large a share of tokens that the tokenizer does not know is told


@dataclass(frozen=True)
class Drawn:
    """Samples, and their source, how they were drawn and what was left out as plain values for the records."""

    batch: Batch
    description: dict[str, Any]


@dataclass(frozen=True)
class Used:
    """The samples that other draws of a data set have taken: texts, and items, dialogues or tasks in words."""

    texts: SeenTexts
    samples: frozenset[Sample]


@dataclass(frozen=True)
class Data:
    """A data set.

    Args:
        draw: How samples are drawn: an instance of ``format.draws``.
        used: What is left out, because it was drawn elsewhere; None to leave out nothing.
    """

    rows: Rows
    format: Format
    draw: WindowOptions | ItemOptions
    used: Used | None = None

    def check(self) -> None:
        """Refuse rows that are missing or misread; read at most the first row and download nothing."""
        if (first := self.rows.check()) is not None:
            where, row = first
            self.format.read(row, where)
        if self.rows.is_one_text and isinstance(self.draw, ItemOptions) and 1 < self.draw.most < math.inf:
            raise UserError(
                f"data.path={self.rows.path} is one document, and a document makes one of data.samples="
                f"{self.draw.samples} items; put its chapters into files of a folder, and give that folder"
            )

    def check_form(self, form: Form) -> None:
        """Refuse an objective whose form is not offered."""
        if form not in self.format.offers:
            kind = type(self.format).__module__.rpartition(".")[2]
            offered = " and ".join(sorted(one.value for one in self.format.offers))
            raise UserError(
                f"this objective asks for {form.value}, but data.type={kind} offers {offered} alone; "
                f"use {_INSTEAD[form]}"
            )

    def check_length(self, max_positions: int | None) -> None:
        """Refuse rows that may be longer than a model's positions."""
        if max_positions is not None and self.draw.seq_len > max_positions:
            raise UserError(
                f"data.seq_len={self.draw.seq_len} is longer than the {max_positions} positions of the model; "
                f"use {max_positions} or less"
            )

    def samples(self, tokenizer: Tokenizer, form: Form, max_positions: int | None = None) -> Drawn:
        """Draw the samples in the form that an objective needs. Call `check` before: its messages are better."""
        self.check_form(form)
        self.check_length(max_positions)
        how = {key: getattr(self.draw, key) for key in ("samples", "seq_len", "sampling", "seed")}
        description = {**self.rows.describe(), **how, **({"unused": True} if self.used else {})}
        if isinstance(self.draw, WindowOptions):
            rows = self._windows(tokenizer, self.draw)
            batch = Batch.of(rows, [[False, *[True] * (len(ids) - 1)] for ids in rows])
        else:
            drawn = self.items()
            batch, truncated = encode_items(drawn.samples, form, self.draw, tokenizer)
            if form is Form.TEXT:
                description["score"] = self.draw.score
            if drawn.groups:
                description |= {"balance": self.draw.balance, "groups": dict(drawn.groups)}
            description |= {"rows_read": drawn.rows_read, "duplicates": drawn.duplicates}
            if drawn.skipped:
                description["skipped"] = drawn.skipped
            description["truncated"] = truncated
        real = batch.input_ids if batch.attention_mask is None else batch.input_ids[batch.attention_mask]
        unknown = float(np.mean(real == getattr(tokenizer, "unk_token_id", None)))
        if unknown >= _MOSTLY:
            description["unknown"] = round(unknown, 3)
        return Drawn(batch, description)

    def items(self) -> DrawnItems:
        """Draw items, dialogues or tasks in words."""
        assert isinstance(self.draw, ItemOptions), "windows of text are drawn in tokens"
        return draw_items(self._samples(), self.draw, self.format.needs)

    def _windows(self, tokenizer: Any, draw: WindowOptions) -> list[list[int]]:
        """Draw windows of text in tokens, without those that have text in common with what was used."""
        if self.used is None:
            return draw_rows(self._documents(), tokenizer, draw)
        more = replace(draw, at_most=draw.at_most and _MORE * draw.at_most)
        windows = draw_rows(self._documents(), tokenizer, more)
        unused = [ids for ids in windows if not self.used.texts.shared(tokenizer.decode(ids))]
        if not unused:
            raise UserError(f"all {len(windows)} windows of the data have text in common with what was used")
        return unused[: draw.at_most]

    def _samples(self) -> Iterator[Located | None]:
        """Read each row's sample that was not used; None for a row that is skipped."""
        for where, row in self.rows.read():
            sample = self.format.read(row, where)
            if self.used is not None and sample in self.used.samples:
                continue
            yield None if sample is None else Located(where, sample)

    def _documents(self) -> Iterator[str]:
        for located in self._samples():
            assert located is not None and isinstance(located.sample, Text), "windows are cut from text"
            yield located.sample.text
