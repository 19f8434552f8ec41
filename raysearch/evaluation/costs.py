"""What a unit of masks costs by its plan, and what cannot be asked for, before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from raysearch.calibration.objectives.base import Objective, StateObjective
from raysearch.errors import UserError
from raysearch.mask import Mask
from raysearch.prefix import PrefixPlan, naive_layer_forwards, plan_prefixes
from raysearch.statistic import Statistic


def plan_of(objective: StateObjective, masks: Iterable[Mask], n_layers: int) -> PrefixPlan:
    """How a round is walked for an objective: where it compares, the dense model rides along, and is scored first."""
    return plan_prefixes(masks, n_layers, dense_first=objective.compares)


def passes(objective: Objective, masks: Sequence[Mask], n_layers: int) -> tuple[int, int]:
    """Layer- and head-forwards of masks on one shard. Where a model generates, masks share nothing."""
    if isinstance(objective, StateObjective):
        return plan_of(objective, masks, n_layers).layer_forwards, objective.heads * len(masks)
    return naive_layer_forwards(masks, n_layers), len(masks)


def check_statistic(statistic: Statistic, objectives: Sequence[Objective]) -> None:
    """Refuses gradients that say nothing.

    Raises:
        UserError: An objective has none at the dense model, or there are several.
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
