"""Forms units of the work to do, computes their costs from their prefix plans, and refuses meaningless statistics."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

from raysearch.calibration.calibration import Calibration
from raysearch.calibration.objectives.base import Objective, StateObjective
from raysearch.core.evaluations import Key
from raysearch.core.mask import Mask
from raysearch.core.scale import Scales
from raysearch.core.site import Sites
from raysearch.core.statistic import Statistic, Subject
from raysearch.errors import UserError
from raysearch.evaluation.prefix import PrefixPlan, naive_layer_forwards, plan_prefixes
from raysearch.evaluation.unit import MaskUnit, StatisticUnit, Unit
from raysearch.models.spec import ModelInfo

#: The most masks in one unit. A larger round is cut, along mask order, so that a killed process loses little work.
MAX_MASKS_PER_UNIT = 1024


def plan_of(objective: StateObjective, masks: Iterable[Mask], sites: Sites, scales: Scales | None = None) -> PrefixPlan:
    """Return the prefix plan of masks for an objective.

    Args:
        objective: The objective. If it compares with the dense model, the plan scores the dense model first.
        masks: The masks to score.
        sites: The layers of the dense model.
        scales: The factors of the masks' cuts; None for masks that are not repaired.

    Returns:
        The steps of the walk on one shard.
    """
    return plan_prefixes(masks, sites, dense_first=objective.compares, scales=scales)


def passes(objective: Objective, masks: Sequence[Mask], sites: Sites) -> tuple[float, int]:
    """Return the layer-forwards and the head-forwards of masks on one shard.

    Args:
        objective: The objective. If the model generates, masks share no prefix.
        masks: The masks to score.
        sites: The layers of the dense model.

    Returns:
        The layer-forwards, a fraction if a mask has halves; and the head-forwards.
    """
    if isinstance(objective, StateObjective):
        return plan_of(objective, masks, sites).layer_forwards, objective.heads * len(masks)
    return naive_layer_forwards(masks, sites), len(masks)


def whole_passes(objectives: Sequence[Objective], masks: Sequence[Mask], sites: Sites) -> float:
    """Return the cost of masks on a shard, in forwards of the whole model, for the most expensive objective.

    Args:
        objectives: The objectives to compare.
        masks: The masks to score.
        sites: The layers of the dense model.

    Returns:
        The layer-forwards of the masks on one shard, divided by those of the dense model.
    """
    layer_forwards_by_objective = []
    for objective in objectives:
        layers, _ = passes(objective, masks, sites)
        layer_forwards_by_objective.append(layers)
    return max(layer_forwards_by_objective) / sites.total_cost


def n_units(calibrations: Sequence[Calibration], n_passes: float) -> float:
    """Return the number of replicas that a round can keep busy.

    A unit is cut if replicas are idle, but each part runs the model from its first layer. So an additional replica
    hardly helps if its part is smaller than one forward of the whole model.

    Args:
        calibrations: The calibrations of the search.
        n_passes: The cost of the largest round on each shard, in forwards of the whole model; infinite if unknown.

    Returns:
        The number; a fraction if the round's cost is one.
    """
    return max(1.0, n_passes) * sum(calibration.n_shards for calibration in calibrations)


def head_cost(info: ModelInfo) -> float:
    """Return the cost of the head in layer-forwards, estimated from the parameters of both."""
    return info.head_parameters / max(1, info.sites.layer_parameters[0])


def shards_of(calibrations: Sequence[Calibration], subject: Subject) -> dict[str, tuple[int, ...]]:
    """Return the shards on which a mask or a statistic is computed.

    Args:
        calibrations: The calibrations of the search.
        subject: A mask, or a statistic of the dense model.

    Returns:
        The numbers of the shards, by the fingerprint of their calibration.
    """
    if isinstance(subject, Statistic) and not subject.by_sample:
        return {calibrations[0].fingerprint: (0,)}
    return {calibration.fingerprint: tuple(range(calibration.n_shards)) for calibration in calibrations}


def units_of(keys: Iterable[Key], calibrations: Sequence[Calibration]) -> list[Unit]:
    """Return the units that compute evaluations.

    Args:
        keys: The keys of the evaluations.
        calibrations: All calibrations of the search.

    Returns:
        The units: first statistics, then masks, in the order of the keys. Masks that share no prefix get a unit each.
    """
    by_fingerprint = {calibration.fingerprint: calibration for calibration in calibrations}
    statistics: list[Unit] = []
    masks_by_shard: dict[tuple[str, int], list[Mask]] = {}
    for calibration, subject, shard in keys:
        if isinstance(subject, Mask):
            masks_by_shard.setdefault((calibration, shard), []).append(subject)
        else:
            statistics.append(StatisticUnit(calibration, shard, subject))
    units: list[Unit] = []
    for (calibration, shard), masks in masks_by_shard.items():
        share_prefixes = isinstance(by_fingerprint[calibration].objective, StateObjective)
        size = MAX_MASKS_PER_UNIT if share_prefixes else 1
        for start in range(0, len(masks), size):
            units.append(MaskUnit(calibration, shard, tuple(masks[start : start + size])))
    return statistics + units


def planned_passes(units: Iterable[Unit], calibrations: Sequence[Calibration], sites: Sites) -> tuple[float, float]:
    """Return the layer-forwards and the head-forwards of units, in passes over all samples.

    Args:
        units: The units.
        calibrations: All calibrations of the search.
        sites: The layers of the dense model.

    Returns:
        The layer-forwards and the head-forwards, each of all samples.
    """
    by_fingerprint = {calibration.fingerprint: calibration for calibration in calibrations}

    @functools.cache  # the same masks on every shard
    def plan(calibration: str, masks: tuple[Mask, ...]) -> tuple[float, int]:
        return passes(by_fingerprint[calibration].objective, masks, sites)

    layers = 0.0
    heads = 0
    for unit in units:
        tokens = sum(batch.n_tokens for batch in unit.batches(by_fingerprint[unit.calibration]))
        if isinstance(unit, MaskUnit):
            unit_layers, unit_heads = plan(unit.calibration, unit.masks)
        else:
            unit_layers = unit.statistic.passes * sites.total_cost
            unit_heads = int(unit.statistic.needs_gradients)
        layers += tokens * unit_layers
        heads += tokens * unit_heads
    return as_passes(layers, heads, calibrations)


def as_passes(layers: float, heads: int, calibrations: Iterable[Calibration]) -> tuple[float, float]:
    """Convert forwards of single tokens to passes over all samples, with one division each, so that they are exact.

    Args:
        layers: Layer-forwards of single tokens.
        heads: Head-forwards of single tokens.
        calibrations: All calibrations of the search.

    Returns:
        The layer-forwards and the head-forwards, each of all samples.
    """
    tokens = sum(batch.n_tokens for calibration in calibrations for batch in calibration.shards)
    return layers / tokens, heads / tokens


def layer_forwards(calibrations: Sequence[Calibration], subjects: Iterable[Subject], sites: Sites) -> float:
    """Return the cost of computing subjects together, in passes of one layer over all samples.

    Args:
        calibrations: All calibrations of the search; each is counted once.
        subjects: Masks, and statistics of the dense model.
        sites: The layers of the dense model.

    Returns:
        The layer-forwards of all samples.
    """
    masks: list[Mask] = []
    statistics: list[Statistic] = []
    for subject in subjects:
        if isinstance(subject, Mask):
            masks.append(subject)
        else:
            statistics.append(subject)
    in_order: list[Subject] = [*statistics, *sorted(masks)]  # as the evaluator orders them
    keys = [
        Key(calibration, subject, shard)
        for subject in in_order
        for calibration, shards in shards_of(calibrations, subject).items()
        for shard in shards
    ]
    layers, _ = planned_passes(units_of(keys, calibrations), calibrations, sites)
    return layers


def check_statistic(statistic: Statistic, objectives: Sequence[Objective]) -> None:
    """Refuse a statistic that needs gradients which the objectives do not have.

    Args:
        statistic: A statistic of the dense model.
        objectives: The objective of each calibration.

    Raises:
        UserError: The statistic needs gradients, and there are several objectives, or the objective has none.
    """
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
