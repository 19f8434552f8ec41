"""Shows a calibration as the model will see it: its samples as text, their scored tokens, and the dense loss."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from raysearch.calibration.calibration import Calibration
from raysearch.core.mask import Mask
from raysearch.core.measure import Measure
from raysearch.evaluation.prepared_data import prepare_data
from raysearch.evaluation.session import open_session
from raysearch.evaluation.spec import EvaluationSpec
from raysearch.evaluation.totals import standard_errors
from raysearch.generation.answer import Answer
from raysearch.searchers.base import Round
from raysearch.searching.notices import announce_large_files, describe_model, warn_of_unknown_tokens
from raysearch.searching.observer import Observer


@dataclass(frozen=True)
class Span:
    """Consecutive tokens of a row, as text.

    Args:
        text: The text.
        scored: Whether these tokens count in the loss.
        n_tokens: The number of tokens.
    """

    text: str
    scored: bool
    n_tokens: int


@dataclass(frozen=True)
class ShownRow:
    """A row of tokens.

    Args:
        spans: The spans of scored and other tokens, in order.
        gold: Whether it is the right choice; None if there are no choices.
    """

    spans: tuple[Span, ...]
    gold: bool | None


@dataclass(frozen=True)
class ShownSample:
    """A sample.

    Args:
        rows: One row, or a row for each choice.
        answer: The expected answer, if the model generates; else None.
    """

    rows: tuple[ShownRow, ...]
    answer: Answer | None


@dataclass(frozen=True)
class Inspection:
    """The facts of a calibration, and its first samples.

    Args:
        name: ``perplexity on c4``.
        measure: The unit of the loss.
        description: The source of the samples, the method of drawing, and what was left out.
        fingerprint: The name of the calibration in the ledger.
        n_samples: The number of samples.
        n_rows: The number of rows; samples with choices have several.
        n_tokens: The number of scored tokens.
        longest: The number of tokens of the longest row.
        n_shards: The number of shards.
        shown: The first samples.
        dense_loss: The loss of the dense model; None if it was not requested.
        standard_error: The standard error of the dense loss from the choice of samples; None if there is none.
    """

    name: str
    measure: Measure
    description: dict[str, Any]
    fingerprint: str
    n_samples: int
    n_rows: int
    n_tokens: int
    longest: int
    n_shards: int
    shown: tuple[ShownSample, ...]
    dense_loss: float | None
    standard_error: float | None


def inspect_data(spec: EvaluationSpec, n_shown: int, with_loss: bool, observer: Observer) -> list[Inspection]:
    """Draw the samples of each calibration.

    Args:
        spec: The model, the data and the objectives.
        n_shown: How many samples are shown.
        with_loss: Whether the dense model is evaluated.
        observer: Gets progress and warnings.

    Returns:
        The facts of each calibration, with its first samples.

    Raises:
        UserError: The data cannot be used.
        EvaluationError: The dense model cannot be evaluated.
    """
    info = describe_model(spec.model, observer)
    losses: Sequence[float | None] = [None] * len(spec.calibrations)
    errors = losses
    announce_large_files(spec, observer)
    prepared = prepare_data(spec, info)
    warn_of_unknown_tokens(prepared.calibrations, observer)
    if with_loss:
        with closing(open_session(spec, info, observer.progress, prepared)) as session:
            losses = session.evaluator.evaluate(Round([Mask()]))[Mask()].parts
            errors = [
                standard_errors(calibration, session.ledger, [Mask()])[0] for calibration in prepared.calibrations
            ]
    return [
        Inspection(
            name=calibration_spec.name,
            measure=calibration.measure,
            description=calibration.description,
            fingerprint=calibration.fingerprint,
            n_samples=calibration.n_samples,
            n_rows=sum(len(shard.input_ids) for shard in calibration.shards),
            n_tokens=calibration.n_tokens,
            longest=max(int(shard.lengths.max()) for shard in calibration.shards),
            n_shards=calibration.n_shards,
            shown=tuple(itertools.islice(_samples(calibration, prepared.files.tokenizer), n_shown)),
            dense_loss=loss,
            standard_error=error,
        )
        for calibration_spec, calibration, loss, error in zip(
            spec.calibrations, prepared.calibrations, losses, errors, strict=True
        )
    ]


def _samples(calibration: Calibration, tokenizer: Any) -> Iterator[ShownSample]:
    """Yield the samples as text, in order."""
    for shard in calibration.shards:
        for index in range(shard.n_samples):
            sample = shard.samples(index, index + 1)
            golds = [None] * len(sample.input_ids) if sample.choices is None else map(bool, sample.choices.gold)
            rows = zip(sample.input_ids, sample.scored, sample.lengths, golds, strict=True)
            yield ShownSample(
                tuple(
                    ShownRow(_spans(ids[:length].tolist(), scored[:length].tolist(), tokenizer), gold)
                    for ids, scored, length, gold in rows
                ),
                None if sample.answers is None else sample.answers[0],
            )


def _spans(ids: list[int], scored: list[bool], tokenizer: Any) -> tuple[Span, ...]:
    """Return the spans of a row; a new span begins where scored tokens begin or end."""
    spans = []
    for is_scored, group in itertools.groupby(zip(scored, ids, strict=True), key=lambda pair: pair[0]):
        tokens = [token for _, token in group]
        spans.append(Span(tokenizer.decode(tokens), is_scored, len(tokens)))
    return tuple(spans)
