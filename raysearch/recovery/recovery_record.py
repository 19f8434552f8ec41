"""The record of recoveries in the ledger, by model and mask: the numbers of the three models, the losses, the cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from raysearch.assessment.results import Result, named_estimate
from raysearch.core.estimate import Estimate, Metric
from raysearch.core.mask import Mask
from raysearch.core.space import LAYERS
from raysearch.ledger.assessments import change_assessment, read_assessments
from raysearch.ledger.ledger import Ledger
from raysearch.searching.events import LossPoint, MaskRecovered, RecoveryHeader
from raysearch.searching.search_record import SearchRecord
from raysearch.stats.estimates import error_of_ratio, mean

_RECOVERIES = "recoveries"  # the name of these entries in the ledger; other entries are named by a fingerprint


@dataclass(frozen=True)
class RepairedCut:
    """The repair of a cut in closed form, with the losses before and after.

    Args:
        cut: The removed layers of the cut: ``{13,14}``.
        held_out_before: The loss on held-out rows before, in nats per token; earlier cuts are repaired.
        held_out: The loss on held-out rows after.
        ridge: The regularisation of the linear map; None if there is none.
        explained: The share of what the removed layers added that the map predicts on held-out rows, squared; None if
            there is no map.
        has_bias: Whether a bias stands for the mean of what the removed layers added.
        scale: The factor of the hidden state; 1 if it is not scaled.
        not_tried: Why not all of linear, bias and scale were tried; empty if they were.
    """

    cut: str
    held_out_before: float
    held_out: float
    ridge: float | None = None
    explained: float | None = None
    has_bias: bool = False
    scale: float = 1.0
    not_tried: str = ""

    @property
    def sentence(self) -> str:
        """The repair and its losses, in a sentence."""
        parts = []
        if self.ridge is not None and self.explained is not None:
            parts.append(f"a linear map that predicts {self.explained:.0%} of what it added (ridge {self.ridge:g})")
        elif self.has_bias:
            parts.append("the mean of what it added as a bias")
        if self.scale != 1:
            parts.append(f"a scale of {self.scale:.3f}")
        losses = f"loss on held-out rows {self.held_out_before:.4f}"
        note = f" ({self.not_tried})" if self.not_tried else ""
        if not parts:
            return f"Cut {self.cut}: not repaired, since nothing lowers the {losses} beyond its error{note}"
        return f"Cut {self.cut}: {' and '.join(parts)}; {losses} -> {self.held_out:.4f}{note}"


@dataclass(frozen=True)
class Training:
    """A training that has ended, or a repair in closed form, whose steps are its cuts.

    Args:
        points: The losses of each step.
        steps: The number of steps.
        best_step: The step with the lowest loss on held-out rows, whose weights are kept; of the last cut, if the cuts
            were trained one by one.
        tokens: The number of tokens that the model was trained on.
        parameters: The number of trained parameters.
        seconds: The time of the process that ended it.
        micro_batch_size: The number of rows at once, at the end.
        learning_rate: The learning rate after the warm-up; None on older records.
        cuts: What was done at each cut, if the model was repaired in closed form.
    """

    points: tuple[LossPoint, ...]
    steps: int
    best_step: int
    tokens: int
    parameters: int
    seconds: float
    micro_batch_size: int
    learning_rate: float | None = None
    cuts: tuple[RepairedCut, ...] = ()

    @property
    def held_out(self) -> list[tuple[int, float]]:
        """The losses on held-out rows, nats per token, by the tokens that the model was trained on."""
        return [(point.tokens, point.held_out) for point in self.points if point.held_out is not None]


@dataclass(frozen=True)
class ThreeNumbers:
    """A number of the dense, the pruned and the recovered model.

    Args:
        metric: The metric.
        dense: The dense model's number.
        pruned: The pruned model's number.
        recovered: The recovered model's number.
        kept: The ratio of pruned and dense, with an error by paired items; None if unknown.
        regained: The ratio of recovered and dense, in the same way.
    """

    metric: Metric
    dense: Estimate
    pruned: Estimate
    recovered: Estimate
    kept: Estimate | None
    regained: Estimate | None


@dataclass(frozen=True)
class RecoveryRecord:
    """A recorded recovery.

    Args:
        recovery_id: Its id.
        search_id: The id of the search that found the mask.
        mask: The removed layers; empty for a dense model that was trained as a control.
        way: The training method: a study's label, or empty.
        rows: The number of rows for training and for the held-out loss.
        left_out: The number of rows that were left out, by the reason.
        training: The training.
        seconds: The time of each stage, in the process where it took longest.
        numbers: The numbers of the three models.
        asked: The inputs that each number depends on, by the names of texts and tasks.
        settings: The configuration of data and training, by dotted key; empty on older records.
        out: The folder of its checkpoint; empty if none was kept, and on older records.
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
        for numbers in self.numbers:
            for model in ("dense", "pruned", "recovered"):
                named |= named_estimate(numbers.metric.name, model, getattr(numbers, model))
        return named

    def event(self, search: SearchRecord) -> MaskRecovered:
        """Return the event of this recovery; `search` is the search of its mask."""
        space = LAYERS if search.result is None else search.result.space
        header = RecoveryHeader(self.recovery_id, self.mask, self.way, self.settings, space.size_of(self.mask))
        return MaskRecovered(search, header, self.training.points, self.named)


def side_by_side(
    dense: Mapping[str, Result], pruned: Mapping[str, Result], recovered: Mapping[str, Result]
) -> tuple[ThreeNumbers, ...]:
    """Return the numbers that all three models have, except speeds, which training does not change.

    Args:
        dense: The dense model's results, by metric.
        pruned: The pruned model's results, by metric.
        recovered: The recovered model's results, by metric.

    Returns:
        The three numbers of each metric, in the order of the recovered model's results.
    """
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
    """Record a recovery, and return the merged record.

    An earlier record of the same recovery is merged: each stage keeps its longest time, and earlier numbers stay.

    Args:
        ledger: The ledger.
        model: The dense model's fingerprint.
        record: The recovery.

    Returns:
        The merged record, as it is in the ledger.
    """

    def change(recorded: Sequence[RecoveryRecord] | None) -> list[RecoveryRecord]:
        by_id = {recovery.recovery_id: recovery for recovery in recorded or ()}
        earlier = by_id.pop(record.recovery_id, record)  # to stand last, as the recovery that was run last
        by_id[record.recovery_id] = _merged(earlier, record)
        return [*by_id.values()]

    recoveries = change_assessment(ledger, model, _RECOVERIES, record.mask, change, list[RecoveryRecord])
    return next(recovery for recovery in recoveries if recovery.recovery_id == record.recovery_id)


def _merged(earlier: RecoveryRecord, later: RecoveryRecord) -> RecoveryRecord:
    """Return one record of the two records of a recovery."""
    stages = {**earlier.seconds, **later.seconds}
    longest = {stage: max(earlier.seconds.get(stage, 0.0), later.seconds.get(stage, 0.0)) for stage in stages}
    new_metrics = {numbers.metric.name for numbers in later.numbers}
    earlier_numbers = [numbers for numbers in earlier.numbers if numbers.metric.name not in new_metrics]
    return replace(
        later,
        way=later.way or earlier.way,
        seconds=longest,
        numbers=(*earlier_numbers, *later.numbers),
        asked={**earlier.asked, **later.asked},
        out=later.out or earlier.out,
    )


def recoveries_of(ledger: Ledger, model: str, masks: Iterable[Mask]) -> list[RecoveryRecord]:
    """Return the recoveries of masks, those of each mask in the order in which they were last run.

    Args:
        ledger: The ledger.
        model: The dense model's fingerprint.
        masks: The masks.

    Returns:
        The records, mask by mask.
    """
    masks = list(masks)
    records_by_mask = read_assessments(ledger, model, _RECOVERIES, masks, list[RecoveryRecord])
    return [record for mask in masks for record in records_by_mask.get(mask, ())]


def recoveries_of_search(ledger: Ledger, record: SearchRecord) -> list[RecoveryRecord]:
    """Return the recoveries of a search's best masks of each size.

    Empty if the search has not finished, or if its masks are repaired: other models are recovered without the repair.

    Args:
        ledger: The ledger.
        record: The search.

    Returns:
        The records, mask by mask.
    """
    result = record.result
    if result is None or result.settings.is_repaired:
        return []
    masks = dict.fromkeys([result.mask, *(trial.mask for trial in result.path)])
    return recoveries_of(ledger, result.fingerprints["model"], masks)


def _share(result: Result, dense: Result) -> Estimate | None:
    """Return a number divided by the dense model's, with an error by paired items if these are known."""
    value = result.estimate.value
    dense_value = dense.estimate.value
    if not dense_value or not math.isfinite(value) or dense.retention is None:  # the ratio has no meaning
        return None
    ratio = value / dense_value
    items = result.items
    if len(items) < 2 or len(items) != len(dense.items):
        return Estimate(ratio)
    if result.metric.unit == "perplexity":  # items add to its logarithm
        gain = mean([item - dense_item for item, dense_item in zip(items, dense.items, strict=True)])
        return Estimate(ratio, gain.error and ratio * len(items) * gain.error)
    return Estimate(ratio, error_of_ratio(items, dense.items))
