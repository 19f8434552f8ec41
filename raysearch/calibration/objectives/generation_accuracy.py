"""Accuracy of generated answers: the masked model generates, and the text is checked.

This is the most expensive objective: nothing is shared between masks, and each new token is a forward pass of its own,
though with a KV cache.

Source: section 3 of `On the Limits of Layer Pruning for Generative Reasoning` (GSM8K by single layers).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import GenerationConfig
from typing_extensions import override

from raysearch.calibration.batch import Answer, Batch, Form
from raysearch.calibration.objectives.base import ModelObjective
from raysearch.core.formatting import as_typed
from raysearch.core.measure import Measure
from raysearch.errors import UserError

#: How a text is checked. ``number``: the number after ``####``, or else the last one, equals that of the right answer,
#: as in GSM8K. ``exact``: the text begins with the right answer's words. ``choice``: the right choice is named before
#: any other. ``auto``: ``choice`` where there are choices, ``number`` where the right answer has
#: ``####``, else ``exact``.
Match = Literal["auto", "number", "exact", "choice"]

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True)
class GenerationAccuracyObjective(ModelObjective):
    """1 for a question that greedy decoding answers wrongly, else 0.

    Args:
        max_new_tokens: When to stop, if the model does not by itself, at least 1.
        match: How an answer is checked: ``number``, ``exact`` or ``choice`` (see `Match`), or ``auto``, which
            depends on the right answer.
        stop: Texts at which an answer ends.
    """

    max_new_tokens: int = 128
    match: Match = "auto"
    stop: Sequence[str] = ("Question:",)

    form = Form.PROMPT
    measure = Measure("errors per item", "sample", "accuracy")

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise UserError(f"objective.max_new_tokens={self.max_new_tokens} writes nothing; use 1 or more")
        if not all(self.stop):
            raise UserError(f"objective.stop={as_typed(self.stop)} has an empty text; leave it out")

    @override
    def model_losses(self, model: Any, tokenizer: Any, batch: Batch) -> tuple[Tensor, int]:
        assert batch.answers is not None, "the data offers answers"
        texts, tokens = self.write(model, tokenizer, batch)
        wrong = [not is_right(text, answer, self.match) for text, answer in zip(texts, batch.answers, strict=True)]
        return torch.tensor(wrong, dtype=torch.float64), tokens

    def write(self, model: Any, tokenizer: Any, batch: Batch) -> tuple[list[str], int]:
        """Continue each prompt by greedy decoding.

        Returns:
            The new texts, each cut at a stop; and the number of tokens that the model was run on.
        """
        ids, real = _padded_left(batch)
        config = GenerationConfig(
            do_sample=False,
            max_new_tokens=self.max_new_tokens,
            eos_token_id=_end_tokens(model, tokenizer),
            pad_token_id=0,  # after the end of a text; cut off below
        )
        try:
            written = model.generate(
                ids.to(model.device), attention_mask=real.to(model.device), generation_config=config
            )
        except IndexError as error:  # the model has a table of positions
            raise UserError(
                f"objective.max_new_tokens={self.max_new_tokens} after a prompt of {ids.shape[1]} tokens leads beyond "
                "the positions of the model; use fewer"
            ) from error
        new = written[:, ids.shape[1] :]
        texts = tokenizer.batch_decode(_until_end(new, config.eos_token_id), skip_special_tokens=True)
        for stop in self.stop:
            texts = [text.partition(stop)[0] for text in texts]
        return texts, ids.numel() + new.numel() - len(new)  # the model does not read the last token


def _padded_left(batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the rows padded on the left, and which tokens are real: int64, [R, T]."""
    ids, real = torch.from_numpy(batch.input_ids), torch.zeros(batch.input_ids.shape, dtype=torch.int64)
    shifted = torch.zeros_like(ids)
    for row, length in enumerate(batch.lengths.tolist()):
        shifted[row, ids.shape[1] - length :], real[row, ids.shape[1] - length :] = ids[row, :length], 1
    return shifted, real


def _end_tokens(model: Any, tokenizer: Any) -> list[int]:
    """Return the tokens that end a text: the model's, or else the tokenizer's."""
    ends = model.generation_config.eos_token_id
    ends = tokenizer.eos_token_id if ends is None else ends
    return [] if ends is None else ends if isinstance(ends, list) else [ends]


def _until_end(new: Tensor, ends: list[int]) -> list[list[int]]:
    """Cut each row at its end."""
    rows = new.tolist()
    return [row[: next((at for at, token in enumerate(row) if token in ends), len(row))] for row in rows]


def is_right(text: str, answer: Answer, match: Match = "auto") -> bool:
    """Return whether a text gives the right answer.

    Args:
        text: The generated text.
        answer: The expected answer.
        match: How it is checked.
    """
    if match == "auto":
        match = "choice" if answer.choices else "number" if "####" in answer.text else "exact"
    if match == "number":
        expected = _number(answer.text)
        return expected is not None and _number(text) == expected
    if match == "exact":
        return _words(text)[: len(_words(answer.text))] == _words(answer.text)
    return _first_named(_words(text), answer.choices) == _words(answer.text)


def _number(text: str) -> float | None:
    """Return the first number after ``####``, or else the last one; None if there is none."""
    _, marked, after = text.partition("####")
    numbers = _NUMBER.findall(after if marked else text)
    return float(numbers[0 if marked else -1].replace(",", "")) if numbers else None


def _words(text: str) -> list[str]:
    """Return the words and numbers, without case and punctuation."""
    return re.findall(r"-?\d[\d.,]*\d|-?\d|[^\W\d_]+", text.casefold())


def _first_named(words: list[str], choices: tuple[str, ...]) -> list[str] | None:
    """Return the choice that is named first; of several at the same place the longest."""
    named = sorted((_words(choice) for choice in choices), key=len, reverse=True)
    starts = range(len(words))
    return next((choice for start in starts for choice in named if words[start : start + len(choice)] == choice), None)
