"""The cost of each single layer: measured by ablation, or estimated by a statistic of the dense model.

These are not searchers but sub-generators for them: ``costs = yield from layer_costs(problem, "ablation")``.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from raysearch.core.problem import Problem
from raysearch.core.statistic import Statistic
from raysearch.searchers.base import Accepted, Dropped, Failed, Loss, Outcome, Remark, Round

Array = NDArray[np.float64]
Prior = Literal["ablation", "influence", "none"]


def layer_costs(
    problem: Problem, prior: Prior, keep: int | None = None
) -> Generator[Round | Statistic | Remark, Any, Array]:
    """Return the cost of each layer of ``problem.free`` [F]. Costs have no unit: only their order matters.

    Args:
        problem: The space of legal masks.
        prior: "ablation" (the single-layer losses s_i, F evaluations; NaN if one failed), "influence" (Block
            Influence, from one pass of the dense model) or "none" (zeros).
        keep: How many of the cheapest layers must be known, with the prior "ablation". The cost of a layer that is
            certainly among them may then be -inf, and that of a layer that is certainly not among them NaN. None for
            the losses of all layers.

    Yields:
        The requests of the prior: a round of single-layer masks, or a statistic and a remark with its values.

    Returns:
        The costs [F].

    Raises:
        EvaluationError: All ablations failed.
    """
    if prior == "ablation":
        ablations = yield Round(problem.singles, keep=keep, exact=keep is None)
        ablations.best(1)  # raises the cause if all failed
        return np.array([_cost(ablations.outcomes[single]) for single in problem.singles])
    if prior == "influence":
        influence = yield from layer_scores(Statistic.BLOCK_INFLUENCE)
        return influence[list(problem.free)]
    return np.zeros(len(problem.free))


def _cost(outcome: Outcome) -> float:
    """Return the cost of a layer from the outcome of its ablation."""
    match outcome:
        case Loss(loss):
            return loss
        case Accepted():
            return -math.inf
        case Failed() | Dropped():
            return math.nan


def layer_scores(statistic: Statistic) -> Generator[Statistic | Remark, Any, Array]:
    """Return a statistic's mean over samples, one number for each layer [N], and record it."""
    rows: Array = yield statistic
    scores = rows.mean(axis=0)
    yield Remark(statistic.value, scores.tolist())
    return scores
