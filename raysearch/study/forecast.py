"""What a search will cost, before it runs.

A searcher is a deterministic function of the scores it is sent, and what it costs hardly depends on them; so it is run
once against made-up additive scores, and the prefix plans of its rounds are kept. No model is involved.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from raysearch.mask import Mask
from raysearch.prefix import naive_layer_forwards, plan_prefixes
from raysearch.problem import Problem
from raysearch.searchers.base import Round, Scores, Searcher, run_searcher


@dataclass(frozen=True)
class RoundCost:
    """The cost of a round on an empty ledger. Forwards are passes over the whole calibration.

    Args:
        masks: Masks the searcher asks for.
        layer_forwards: Layers that the prefix plan runs.
        head_forwards: Times the final norm and head run.
        naive_layer_forwards: Layers that one full forward per mask would run.
    """

    masks: int
    layer_forwards: int
    head_forwards: int
    naive_layer_forwards: int


def forecast(searcher: Searcher, problem: Problem, seed: int, patience_s: float = 2.0) -> list[RoundCost] | None:
    """Rehearses a search against made-up scores.

    Args:
        searcher: The algorithm.
        problem: The space of legal masks.
        seed: Seeds both the searcher and the made-up scores.
        patience_s: How long the rehearsal may take.

    Returns:
        The expected cost of each round, or None if the searcher itself is too slow to rehearse.
    """
    layer_costs = np.random.default_rng(seed).random(problem.n_layers)
    deadline = time.monotonic() + patience_s
    seen: set[Mask] = set()
    rounds: list[RoundCost] = []

    def rehearse(proposed: Round) -> Scores:
        if time.monotonic() > deadline:
            raise _TooSlow
        plan = plan_prefixes((mask for mask in proposed.masks if mask not in seen), problem.n_layers)
        naive = naive_layer_forwards(proposed.masks, problem.n_layers)
        rounds.append(RoundCost(len(proposed.masks), plan.layer_forwards, plan.head_forwards, naive))
        seen.update(proposed.masks)
        return Scores({mask: float(layer_costs[list(mask)].sum()) for mask in proposed.masks})

    try:
        run_searcher(searcher, problem, seed, rehearse)
    except _TooSlow:
        return None
    return rounds


class _TooSlow(Exception):
    """The rehearsal ran out of patience."""
