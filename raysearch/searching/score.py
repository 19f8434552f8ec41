"""Computes the exact loss of masks that a user gives, such as those of a paper."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from pydantic import SerializerFunctionWrapHandler, model_serializer

from raysearch.core.mask import Mask
from raysearch.core.measure import Measure
from raysearch.core.scale import Scale
from raysearch.errors import EvaluationError, UserError
from raysearch.evaluation.costs import whole_passes
from raysearch.evaluation.session import open_session
from raysearch.evaluation.spec import EvaluationSpec
from raysearch.searchers.base import Round
from raysearch.searching.notices import announce_large_files, describe_model, warn_of_unknown_tokens
from raysearch.searching.observer import Observer
from raysearch.searching.result import named_readout


@dataclass(frozen=True)
class Score:
    """The loss of a mask.

    Args:
        mask: The mask.
        measure: The unit of the loss.
        loss: The loss.
        n_tokens: The number of scored tokens.
        n_samples: The number of samples.
        cached: Whether the loss was in the ledger.
        scales: The factors of its cuts, if it was repaired by them.
    """

    mask: Mask
    measure: Measure
    loss: float
    n_tokens: int
    n_samples: int
    cached: bool
    scales: tuple[Scale, ...] = ()

    @model_serializer(mode="wrap")
    def _write(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = write(self)
        if not self.scales:
            del fields["scales"]
        return {"removed": fields.pop("mask"), **fields, **named_readout(self.measure, self.loss)}


def score_masks(spec: EvaluationSpec, masks: Sequence[Mask], observer: Observer) -> list[Score]:
    """Evaluate masks.

    Args:
        spec: The model, the data and the objectives.
        masks: The masks.
        observer: Gets progress and warnings.

    Returns:
        The loss of each mask, in the order of `masks`.

    Raises:
        UserError: A mask names a layer that the model does not have, or removes all, or has halves that are repaired.
        EvaluationError: A mask has no finite loss.
    """
    info = describe_model(spec.model, observer)
    name = spec.model.name
    last = len(info.sites) - 1
    for mask in masks:
        largest = max(mask.touched_layers, default=0)
        text = f"[{', '.join(map(str, mask.parts))}]"
        if largest > last:
            raise UserError(
                f"masks=[…,{text},…] names layer {largest}, but {name} has layers 0 … {last}; name only those"
            )
        if len(mask.layers) > last:
            raise UserError(f"masks=[…,{text},…] removes every layer of {name}; keep at least one")
        if mask.halves and spec.repair != "none":
            raise UserError(
                f"masks=[…,{text},…] has halves of layers, and repair={spec.repair} is for whole layers; use "
                "repair=none"
            )
    announce_large_files(spec, observer)
    n_passes = whole_passes(spec.objectives, masks, info.sites)
    with closing(open_session(spec, info, observer.progress, n_passes=n_passes)) as session:
        warn_of_unknown_tokens(session.calibrations, observer)
        evaluations = session.evaluator.evaluate(Round(masks))
        scores = []
        for mask in masks:
            evaluation = evaluations[mask]
            if evaluation.loss is None:
                raise EvaluationError(f"mask {mask}: {evaluation.failure}")
            scores.append(
                Score(
                    mask=mask,
                    measure=session.measure,
                    loss=evaluation.loss,
                    n_tokens=session.n_tokens,
                    n_samples=session.n_samples,
                    cached=evaluation.cached,
                    scales=evaluation.scales,
                )
            )
        return scores
