"""Accuracy of generated answers: the masked model generates text, and the text is checked.

This is the most expensive objective. Masks share no computation, and each new token needs a forward pass, although a KV
cache makes it cheaper. The ledger stores the generated texts together with the losses.

Source: section 3 of `On the Limits of Layer Pruning for Generative Reasoning` (GSM8K by single layers).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt
from typing_extensions import override

from raysearch.calibration.batch import Batch, Form
from raysearch.calibration.objectives.base import ModelLosses, ModelObjective
from raysearch.core.measure import Measure
from raysearch.core.options import Options, Seed
from raysearch.errors import UserError
from raysearch.generation.answer import Answer
from raysearch.generation.checks import Match, check_of, score_answers
from raysearch.generation.prompt import Decoding, Prompt, Written
from raysearch.generation.score import ScoredText
from raysearch.text.sentences import as_typed

_MAX_NEW_TOKENS = 128
_STOP = ("Question:",)


@dataclass(frozen=True)
class GenerationAccuracyObjective(Options, ModelObjective):
    """1 minus the score of each generated answer: 0 if the answer is right, 1 if it is wrong.

    Args:
        max_new_tokens: The most tokens of an answer; None for the limit of the data, else 128.
        match: The check of an answer: ``number``, ``exact``, ``choice`` and so on (see `Check`). ``auto`` takes the
            check that the data declares, else one that suits the right answer.
        stop: Texts at which an answer ends; None for those of the data, else ``Question:``.
        temperature: 0 for the likeliest token; else logits are divided by it, and tokens are drawn.
        top_k: The number of likeliest tokens to draw from; 0 for all.
        top_p: The probability of the likeliest tokens to draw from; 1 for all.
        seed: The seed of the draws; each item has its own random numbers.
        batch_size: The number of answers that are generated at once; None for as many as fit the device.
        run_code: Whether generated code may be run, in a sandbox.
    """

    section = "objective"

    max_new_tokens: PositiveInt | None = None
    match: Match = "auto"
    stop: Sequence[str] | None = None
    temperature: NonNegativeFloat = 0.0
    top_k: NonNegativeInt = 0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: Seed = 0
    batch_size: PositiveInt | None = None
    run_code: bool = False

    form = Form.PROMPT
    measure = Measure("errors per item", "sample", "accuracy")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stop is not None and not all(self.stop):
            raise UserError(f"{self.section}.stop={as_typed(self.stop)} has an empty text; leave it out")

    @override
    def check_samples(self, batch: Batch) -> None:
        for answer in batch.answers or ():
            check = check_of(answer, self.match)
            offered = {"code": answer.tests, "regex": answer.pattern, "choice": answer.choices}.get(check, True)
            if not offered:
                raise UserError(f"objective.match={check} is not offered by these data; use objective.match=auto")
            if check == "code" and not self.run_code:
                raise UserError(
                    "objective.run_code=false, but these data are checked by running the generated code; it runs in a "
                    "sandbox, without network: allow it with objective.run_code=true, or choose other data"
                )

    @override
    def model_losses(self, model: Any, tokenizer: Any, batch: Batch) -> ModelLosses:
        from raysearch.generation.decoding import generate

        written, n_tokens = generate(model, tokenizer, self.prompts(batch), self.decoding, self.batch_size)
        return self.scored(written, batch.answers or (), n_tokens)

    def prompts(self, batch: Batch) -> list[Prompt]:
        """Return the prompts of a batch, with the limits of their answers."""
        assert batch.answers is not None, "the data offers answers"
        rows = zip(batch.input_ids, batch.lengths.tolist(), batch.answers, strict=True)
        return [
            Prompt(
                ids=tuple(ids[:length].tolist()),
                max_new_tokens=self.max_new_tokens or answer.max_new_tokens or _MAX_NEW_TOKENS,
                stop=tuple(next(stop for stop in (self.stop, answer.stop, _STOP) if stop is not None)),
            )
            for ids, length, answer in rows
        ]

    def scored(self, written: Sequence[Written], answers: Sequence[Answer], n_tokens: int = 0) -> ModelLosses:
        """Check generated answers.

        Args:
            written: The generated texts.
            answers: The expected answer to each prompt.
            n_tokens: The number of tokens that the model computed to generate them.

        Returns:
            The loss of each answer (0 for a right one, 1 for a wrong one), the number of tokens, and the scored texts.
        """
        import torch

        scores = score_answers([text.text for text in written], answers, self.match, torch.get_num_threads())
        texts = [ScoredText(**vars(text), score=score) for text, score in zip(written, scores, strict=True)]
        losses = torch.tensor([1.0 - scored_text.score.value for scored_text in texts], dtype=torch.float64)
        return ModelLosses(losses, n_tokens, texts)

    @property
    def decoding(self) -> Decoding:
        """The options by which tokens are chosen."""
        return Decoding(self.temperature, self.top_k, self.top_p, self.seed)
