"""A calibration as the model will see it: its samples in words, what is scored of them, and what they lose."""

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
from raysearch.searching.observer import Observer, describe_model, tell_of_large_files, warn_of_unknown


@dataclass(frozen=True)
class Span:
    """Tokens that follow each other, as text; all of them are scored, that is, count in the loss, or none."""

    text: str
    scored: bool
    n_tokens: int


@dataclass(frozen=True)
class Row:
    """A row of tokens; `gold` is whether it is the right choice, None where there are no choices."""

    spans: tuple[Span, ...]
    gold: bool | None


@dataclass(frozen=True)
class ShownSample:
    """A sample: a row, or one for each of its choices, and the answer that is expected where it is to be generated."""

    rows: tuple[Row, ...]
    answer: Answer | None


@dataclass(frozen=True)
class Inspection:
    """A calibration, looked at.

    Args:
        name: ``perplexity on c4``.
        description: Where its samples come from, how they were drawn, what was left out.
        n_tokens: Scored tokens.
        longest: Tokens of the longest row.
        shown: The first samples.
        dense_loss: None if that was not asked for.
        standard_error: Of the dense loss, by the chance of which samples were drawn.
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
    """Draw the samples of each calibration, show the first `n_shown`, and run the dense model if `with_loss`.

    Raises:
        UserError: The data cannot be used.
        EvaluationError: The dense model cannot be evaluated.
    """
    info = describe_model(spec.model, observer)
    losses: Sequence[float | None] = [None] * len(spec.calibrations)
    errors = losses
    tell_of_large_files(spec, observer)
    prepared = prepare_data(spec, info)
    warn_of_unknown(prepared.calibrations, observer)
    if with_loss:
        with closing(open_session(spec, info, observer.progress, prepared)) as session:
            losses = session.evaluator.evaluate(Round([Mask()]))[Mask()].parts
            errors = [standard_errors(one, session.ledger, [Mask()])[0] for one in prepared.calibrations]
    return [
        Inspection(
            name=one.name,
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
        for one, calibration, loss, error in zip(spec.calibrations, prepared.calibrations, losses, errors, strict=True)
    ]


def _samples(calibration: Calibration, tokenizer: Any) -> Iterator[ShownSample]:
    """Yield the samples in order, in words."""
    for shard in calibration.shards:
        for sample in range(shard.n_samples):
            one = shard.samples(sample, sample + 1)
            golds = [None] * len(one.input_ids) if one.choices is None else map(bool, one.choices.gold)
            rows = zip(one.input_ids, one.scored, one.lengths, golds, strict=True)
            yield ShownSample(
                tuple(
                    Row(_spans(ids[:length].tolist(), scored[:length].tolist(), tokenizer), gold)
                    for ids, scored, length, gold in rows
                ),
                None if one.answers is None else one.answers[0],
            )


def _spans(ids: list[int], scored: list[bool], tokenizer: Any) -> tuple[Span, ...]:
    """Return a row, cut where scored tokens begin and end."""
    spans = []
    for counts, group in itertools.groupby(zip(scored, ids, strict=True), key=lambda pair: pair[0]):
        tokens = [token for _, token in group]
        spans.append(Span(tokenizer.decode(tokens), counts, len(tokens)))
    return tuple(spans)
