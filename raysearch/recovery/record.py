"""The record of recoveries in the ledger, by model and mask: the numbers side by side, the losses, the cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from raysearch.assessment.paired import error_of_ratio, mean
from raysearch.assessment.results import Result, named_estimate
from raysearch.core.estimate import Estimate, Metric
from raysearch.core.mask import Mask
from raysearch.ledger.assessments import change_assessment, read_assessments
from raysearch.ledger.ledger import Ledger
from raysearch.searching.observer import LossPoint, RecoveryHeader
from raysearch.searching.record import SearchRecord

_RECOVERIES = "recoveries"  # in the ledger, where others are named by a fingerprint


@dataclass(frozen=True)
class Training:
    """A training that has ended.

    Args:
        best_step: The step whose weights are kept: the lowest loss on held-out rows.
        tokens: Those that the model was trained on.
        parameters: How many were trained.
        seconds: Of the process that ended it.
        micro_batch_size: Rows at once in the end.
    """

    points: tuple[LossPoint, ...]
    steps: int
    best_step: int
    tokens: int
    parameters: int
    seconds: float
    micro_batch_size: int

    @property
    def held_out(self) -> list[tuple[int, float]]:
        """The losses on held-out rows, nats per token, by the tokens that the model was trained on."""
        return [(point.tokens, point.held_out) for point in self.points if point.held_out is not None]


@dataclass(frozen=True)
class ThreeNumbers:
    """A number of the dense, the pruned and the recovered model.

    Args:
        kept: The pruned model's divided by the dense one's, its error by paired items; None where that is not known.
        regained: The recovered model's in the same way.
    """

    metric: Metric
    dense: Estimate
    pruned: Estimate
    recovered: Estimate
    kept: Estimate | None
    regained: Estimate | None


@dataclass(frozen=True)
class RecoveryRecord:
    """A recovery on record.

    Args:
        mask: The layers that are gone; none for a dense model that was trained as a control.
        way: How it was trained, in a few words: a study's label.
        rows: Rows it was trained and followed on.
        left_out: Rows that were left out, by the reason.
        seconds: Of each stage, in the process where it took longest.
        asked: What the numbers depend on, by the names of texts and tasks.
        settings: What it was trained on, and how, by dotted key of the configuration; empty on older records.
        out: The folder of its checkpoint; empty where none was to be kept, and on older records.
    """

    recovery_id: str
    search_id: str
    mask: Mask
    way: str
    rows: int
    left_out: Mapping[str, int]
    training: Training
    seconds: Mapping[str, float]
    numbers: tuple[ThreeNumbers, ...]
    asked: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    out: str = ""

    @property
    def named(self) -> dict[str, float]:
        """The costs and the three models' numbers by the names that MLflow shows."""
        named: dict[str, float] = {
            "recovery/rows": self.rows,
            "recovery/steps": self.training.steps,
            "recovery/tokens": self.training.tokens,
            "recovery/parameters": self.training.parameters,
            **{f"recovery/seconds_{stage}": seconds for stage, seconds in self.seconds.items()},
        }
        for one in self.numbers:
            for model in ("dense", "pruned", "recovered"):
                named |= named_estimate(one.metric.name, model, getattr(one, model))
        return named

    @property
    def told(self) -> tuple[RecoveryHeader, Sequence[LossPoint], Mapping[str, float]]:
        """What trackers are told of it."""
        return RecoveryHeader(self.recovery_id, self.mask, self.way, self.settings), self.training.points, self.named


def side_by_side(
    dense: Mapping[str, Result], pruned: Mapping[str, Result], recovered: Mapping[str, Result]
) -> tuple[ThreeNumbers, ...]:
    """Return the numbers that all three models have, without speeds, which training does not change."""
    return tuple(
        ThreeNumbers(
            metric=result.metric,
            dense=dense[name].estimate,
            pruned=pruned[name].estimate,
            recovered=result.estimate,
            kept=pruned[name].retention,
            regained=_share(result, dense[name]),
        )
        for name, result in recovered.items()
        if name in pruned and result.metric.group != "speed"
    )


def write_recovery(ledger: Ledger, model: str, record: RecoveryRecord) -> RecoveryRecord:
    """Put a recovery on record beside the others of its mask, by the dense model's fingerprint, and return it.

    Stages that were done by an earlier process have the seconds of that one; numbers that were assessed earlier stay.
    """

    def change(known: Sequence[RecoveryRecord] | None) -> list[RecoveryRecord]:
        every = {one.recovery_id: one for one in known or ()}
        before = every.get(record.recovery_id, record)
        stages = {**before.seconds, **record.seconds}
        longest = {stage: max(one.seconds.get(stage, 0.0) for one in (before, record)) for stage in stages}
        now = {one.metric.name for one in record.numbers}
        numbers = (*(one for one in before.numbers if one.metric.name not in now), *record.numbers)
        asked = {**before.asked, **record.asked}
        way, out = record.way or before.way, record.out or before.out
        every[record.recovery_id] = replace(record, way=way, seconds=longest, numbers=numbers, asked=asked, out=out)
        return [*every.values()]

    every = change_assessment(ledger, model, _RECOVERIES, record.mask, change, list[RecoveryRecord])
    return next(one for one in every if one.recovery_id == record.recovery_id)


def recoveries_of(ledger: Ledger, model: str, masks: Iterable[Mask]) -> list[RecoveryRecord]:
    """Return the recoveries of masks by the dense model's fingerprint, those of a mask in the order they came about."""
    masks = list(masks)
    known = read_assessments(ledger, model, _RECOVERIES, masks, list[RecoveryRecord])
    return [record for mask in masks for record in known.get(mask, ())]


def recoveries_of_search(ledger: Ledger, record: SearchRecord) -> list[RecoveryRecord]:
    """Return the recoveries of the masks that a search found, one of each number of layers; none before its end."""
    if (result := record.result) is None:
        return []
    masks = dict.fromkeys([result.mask, *(trial.mask for trial in result.path)])
    return recoveries_of(ledger, result.fingerprints["model"], masks)


def _share(result: Result, dense: Result) -> Estimate | None:
    """Return a number divided by the dense model's, with an error by paired items where those are known."""
    value, of_dense = result.estimate.value, dense.estimate.value
    if not of_dense or not math.isfinite(value) or dense.retention is None:  # where a ratio says nothing
        return None
    ratio, ours, others = value / of_dense, result.items, dense.items
    if len(ours) < 2 or len(ours) != len(others):
        return Estimate(ratio)
    if result.metric.unit == "perplexity":  # items add to its logarithm
        gain = mean([one - other for one, other in zip(ours, others, strict=True)])
        return Estimate(ratio, gain.error and ratio * len(ours) * gain.error)
    return Estimate(ratio, error_of_ratio(ours, others))
