"""Accuracy of generated answers: the masked model writes, and what it wrote is checked.

The dear objective behind iterative pruning for generative tasks: nothing is shared between masks, and each token that
is written is a forward pass of its own, though with a KV cache.

Source: section 3 of `On the Limits of Layer Pruning for Generative Reasoning` (GSM8K by single layers).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import GenerationConfig

from raysearch.calibration.answers import Match, is_right
from raysearch.calibration.batch import Batch, Form
from raysearch.core.formatting import as_typed
from raysearch.core.measure import Measure
from raysearch.errors import UserError


@dataclass(frozen=True)
class GenerationAccuracyObjective:
    """1 for a question that greedy decoding answers wrongly, else 0.

    Args:
        max_new_tokens: When to stop, if the model does not by itself, at least 1.
        match: When an answer is right: ``number``, ``exact`` or ``choice`` (see `raysearch.calibration.answers`), or
            ``auto``, by what the right answer looks like.
        stop: Texts at which an answer ends.
    """

    max_new_tokens: int = 128
    match: Match = "auto"
    stop: Sequence[str] = ("Question:",)

    form: ClassVar[Form] = Form.PROMPT
    measure: ClassVar[Measure] = Measure("errors per item", "sample", "accuracy")

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise UserError(f"objective.max_new_tokens={self.max_new_tokens} writes nothing; use 1 or more")
        if not all(self.stop):
            raise UserError(f"objective.stop={as_typed(self.stop)} has an empty text; leave it out")

    def model_losses(self, model: Any, tokenizer: Any, batch: Batch) -> tuple[Tensor, int]:
        """See `ModelObjective.model_losses`."""
        assert batch.answers is not None, "an answer is checked against one"
        texts, tokens = self.write(model, tokenizer, batch)
        wrong = [not is_right(text, answer, self.match) for text, answer in zip(texts, batch.answers, strict=True)]
        return torch.tensor(wrong, dtype=torch.float64), tokens

    def write(self, model: Any, tokenizer: Any, batch: Batch) -> tuple[list[str], int]:
        """Goes on from each prompt by greedy decoding.

        Returns:
            What was written, without what follows a stop; and the tokens that the model was run on.
        """
        ids, real = _padded_left(batch)
        config = GenerationConfig(
            do_sample=False,
            max_new_tokens=self.max_new_tokens,
            eos_token_id=_end_tokens(model, tokenizer),
            pad_token_id=0,  # what is generated after an end; masked, and cut off in what is read
        )
        try:
            written = model.generate(
                ids.to(model.device), attention_mask=real.to(model.device), generation_config=config
            )
        except IndexError as error:  # positions that are looked up in a table
            raise UserError(
                f"objective.max_new_tokens={self.max_new_tokens} after a prompt of {ids.shape[1]} tokens leads beyond "
                "the positions of the model; use fewer"
            ) from error
        new = written[:, ids.shape[1] :]
        texts = tokenizer.batch_decode(_until_end(new, config.eos_token_id), skip_special_tokens=True)
        for stop in self.stop:
            texts = [text.partition(stop)[0] for text in texts]
        return texts, ids.numel() + new.numel() - len(new)  # the last token is not read again


def _padded_left(batch: Batch) -> tuple[Tensor, Tensor]:
    """The rows with their padding in front, and which tokens are real: int64, [R, T]."""
    ids, real = torch.from_numpy(batch.input_ids), torch.zeros(batch.input_ids.shape, dtype=torch.int64)
    shifted = torch.zeros_like(ids)
    for row, length in enumerate(batch.lengths.tolist()):
        shifted[row, ids.shape[1] - length :], real[row, ids.shape[1] - length :] = ids[row, :length], 1
    return shifted, real


def _end_tokens(model: Any, tokenizer: Any) -> list[int]:
    """The tokens that end a text: the model's, or else the tokenizer's."""
    ends = model.generation_config.eos_token_id
    ends = tokenizer.eos_token_id if ends is None else ends
    return [] if ends is None else ends if isinstance(ends, list) else [ends]


def _until_end(new: Tensor, ends: list[int]) -> list[list[int]]:
    """Each row up to its end."""
    rows = new.tolist()
    return [row[: next((at for at, token in enumerate(row) if token in ends), len(row))] for row in rows]
