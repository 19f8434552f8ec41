"""The cost of each layer alone: measured by ablation, or estimated by a statistic of the dense model.

Not a searcher: sub-generators for use in one, ``costs = yield from layer_costs(problem, "ablation")``.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from raysearch.core.problem import Problem
from raysearch.core.statistic import Statistic
from raysearch.searchers.base import Remark, Round

Array = NDArray[np.float64]
Prior = Literal["ablation", "influence", "none"]


def layer_costs(
    problem: Problem, prior: Prior, keep: int | None = None
) -> Generator[Round | Statistic | Remark, Any, Array]:
    """Return one cost for each layer of ``problem.free``, without a unit: only the comparison matters [F].

    The prior is "ablation" (the single-layer losses s_i, F evaluations; NaN where one failed), "influence" (Block
    Influence, from one pass of the dense model) or "none" (zeros). `keep` says how many of the cheapest must be known,
    of ablations: those that are beyond doubt among them may be -inf, and others NaN. None is for all losses.
    """
    if prior == "ablation":
        ablations = yield Round(problem.singles, keep=keep, exact=keep is None)
        ablations.best(1)  # raises the cause if all failed
        known = {**ablations.losses, **dict.fromkeys(ablations.accepted, -np.inf)}
        return np.array([known.get(single, np.nan) for single in problem.singles])
    if prior == "influence":
        influence = yield from layer_scores(Statistic.BLOCK_INFLUENCE)
        return influence[list(problem.free)]
    return np.zeros(len(problem.free))


def layer_scores(statistic: Statistic) -> Generator[Statistic | Remark, Any, Array]:
    """Return the mean over samples of a statistic with one number per layer, and put it on the record [N]."""
    rows: Array = yield statistic
    scores = rows.mean(axis=0)
    yield Remark(statistic.value, scores.tolist())
    return scores
