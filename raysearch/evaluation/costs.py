"""Cuts what is to be computed into units, prices those by their plans, and refuses statistics without meaning."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

from raysearch.calibration.calibration import Calibration
from raysearch.calibration.objectives.base import Objective, StateObjective
from raysearch.core.mask import Mask
from raysearch.core.statistic import Statistic, Subject
from raysearch.errors import UserError
from raysearch.evaluation.prefix import PrefixPlan, naive_layer_forwards, plan_prefixes
from raysearch.evaluation.unit import MaskUnit, StatisticUnit, Unit
from raysearch.models.spec import ModelInfo

#: Masks in one unit at most: a larger round is cut, along mask order, so that a kill loses little.
MAX_MASKS_PER_UNIT = 1024


def plan_of(objective: StateObjective, masks: Iterable[Mask], n_layers: int) -> PrefixPlan:
    """Plan the walk for an objective; one that compares with the dense model has that scored first."""
    return plan_prefixes(masks, n_layers, dense_first=objective.compares)


def passes(objective: Objective, masks: Sequence[Mask], n_layers: int) -> tuple[int, int]:
    """Return the layer- and head-forwards of masks on one shard. Masks share nothing if the model generates."""
    if isinstance(objective, StateObjective):
        return plan_of(objective, masks, n_layers).layer_forwards, objective.heads * len(masks)
    return naive_layer_forwards(masks, n_layers), len(masks)


def whole_passes(objectives: Sequence[Objective], masks: Sequence[Mask], n_layers: int) -> float:
    """Return how many runs of the whole model on a shard these masks are worth, by the objective that takes most."""
    return max(passes(objective, masks, n_layers)[0] for objective in objectives) / n_layers


def n_units(calibrations: Sequence[Calibration], n_passes: float) -> float:
    """Return how many replicas a round can keep busy.

    A unit is cut for replicas that have nothing to do, but each part runs the model from its first layer. So a part is
    hardly worth its replica if it is less than a run of the whole model.

    Args:
        calibrations: What is evaluated on.
        n_passes: Runs of the whole model on each shard that the largest round is worth; infinite where that is unknown.
    """
    return max(1.0, n_passes) * sum(calibration.n_shards for calibration in calibrations)


def head_cost(info: ModelInfo) -> float:
    """Return the cost of the head in runs of a layer, by parameters."""
    return info.head_parameters / max(1, info.layer_parameters[0])


def shards_of(calibrations: Sequence[Calibration], subject: Subject) -> dict[str, tuple[int, ...]]:
    """Return the shards that a mask or a statistic is computed on, by calibration."""
    if isinstance(subject, Statistic) and not subject.by_sample:
        return {calibrations[0].fingerprint: (0,)}
    return {calibration.fingerprint: tuple(range(calibration.n_shards)) for calibration in calibrations}


def units_of(calibration: Calibration, wanted: Iterable[tuple[Subject, int]]) -> list[Unit]:
    """Return units for pairs of subject and shard, in their order; masks that share nothing get a unit each."""
    name, most = calibration.fingerprint, MAX_MASKS_PER_UNIT if isinstance(calibration.objective, StateObjective) else 1
    statistics: list[Unit] = []
    masks_of_shard: dict[int, list[Mask]] = {}
    for subject, shard in wanted:
        if isinstance(subject, Mask):
            masks_of_shard.setdefault(shard, []).append(subject)
        else:
            statistics.append(StatisticUnit(name, shard, subject))
    return statistics + [
        MaskUnit(name, shard, tuple(masks[start : start + most]))
        for shard, masks in masks_of_shard.items()
        for start in range(0, len(masks), most)
    ]


def planned_passes(units: Iterable[Unit], calibrations: Sequence[Calibration], n_layers: int) -> tuple[float, float]:
    """Return what units run together: layer- and head-forwards, in passes over all samples."""
    by_fingerprint = {calibration.fingerprint: calibration for calibration in calibrations}

    @functools.cache  # the same masks on every shard
    def plan(calibration: str, masks: tuple[Mask, ...]) -> tuple[int, int]:
        return passes(by_fingerprint[calibration].objective, masks, n_layers)

    layers = heads = 0
    for unit in units:
        tokens = sum(batch.n_tokens for batch in unit.batches(by_fingerprint[unit.calibration]))
        if isinstance(unit, MaskUnit):
            unit_layers, unit_heads = plan(unit.calibration, unit.masks)
        else:
            unit_layers, unit_heads = unit.statistic.passes * n_layers, int(unit.statistic.needs_gradients)
        layers, heads = layers + tokens * unit_layers, heads + tokens * unit_heads
    return as_passes(layers, heads, calibrations)


def as_passes(layers: int, heads: int, calibrations: Iterable[Calibration]) -> tuple[float, float]:
    """Convert layer- and head-forwards of single tokens to passes over all samples (exact: one division)."""
    tokens = sum(batch.n_tokens for calibration in calibrations for batch in calibration.shards)
    return layers / tokens, heads / tokens


def layer_forwards(calibrations: Sequence[Calibration], subjects: Iterable[Subject], n_layers: int) -> float:
    """Return what computing all of these together takes, in passes of one layer over all samples."""
    subjects = list(subjects)
    masks = sorted(subject for subject in subjects if isinstance(subject, Mask))  # as the evaluator orders them
    in_order: list[Subject] = [*(subject for subject in subjects if isinstance(subject, Statistic)), *masks]
    units: list[Unit] = []
    for name, calibration in {one.fingerprint: one for one in calibrations}.items():
        shards = {subject: shards_of(calibrations, subject).get(name, ()) for subject in in_order}
        units += units_of(calibration, ((subject, shard) for subject, of in shards.items() for shard in of))
    return planned_passes(units, calibrations, n_layers)[0]


def check_statistic(statistic: Statistic, objectives: Sequence[Objective]) -> None:
    """Refuse a statistic of gradients, by a `UserError`, for several objectives or one without gradients."""
    if not statistic.needs_gradients:
        return
    if len(objectives) > 1:
        raise UserError(
            f"this searcher takes gradients ({statistic}) of one objective, but objective=weighted has "
            f"{len(objectives)}; use another searcher, or one of them alone"
        )
    (objective,) = objectives
    if not (isinstance(objective, StateObjective) and objective.differentiable):
        kind = type(objective).__module__.rpartition(".")[2]
        raise UserError(
            f"this searcher takes gradients ({statistic}), of which objective.type={kind} has none at the dense model; "
            "use objective=perplexity or objective=task_margin, or another searcher"
        )
