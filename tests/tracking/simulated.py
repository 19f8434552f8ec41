"""Searches on simulated losses, in several measures."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from raysearch.core.mask import Mask
from raysearch.core.measure import PERPLEXITY, Measure
from raysearch.core.problem import Problem
from raysearch.searching.result import SearchResult
from tests.tracking.tracker_suite import ACCURACY, KL, MARGIN, search_of

DENSE_LOSS = 2.8  # nats per token

#: The losses in each measure, from nats per token; all of them rank masks in the same order.
_FROM_NATS: dict[Measure, Callable[[float], float]] = {
    PERPLEXITY: lambda nats: nats,
    MARGIN: lambda nats: nats - 4,
    ACCURACY: lambda nats: 1 - math.exp(-nats / 5),
    KL: lambda nats: nats - DENSE_LOSS,
}


def simulate_losses(n_layers: int, seed: int = 0, measure: Measure = PERPLEXITY) -> Callable[[Mask], float]:
    """Return a loss like that of a real decoder: the first and last layers matter most, late middle layers least."""
    depth = np.linspace(0, 1, n_layers)
    single = 0.04 + 2.5 * np.exp(-18 * depth) + 0.9 * np.exp(-14 * (1 - depth)) + 0.12 * np.abs(depth - 0.68)
    single = single * np.random.default_rng(seed).lognormal(0, 0.25, n_layers)

    def loss(mask: Mask) -> float:
        gaps = np.diff(np.array(mask.layers)) if len(mask) > 1 else np.array([])
        delta = sum(single[layer] for layer in mask) * (1 + 0.12 * len(mask)) + 0.06 * (gaps == 1).sum()
        return _FROM_NATS[measure](float(DENSE_LOSS + delta))

    return loss


def greedy_search(
    n_layers: int = 8,
    n_remove: int = 3,
    search_id: str = "greedy-m3-00000000",
    seed: int = 0,
    measure: Measure = PERPLEXITY,
) -> SearchResult:
    """Return the result of a greedy search on simulated losses."""
    problem = Problem.create(n_layers, n_remove)
    loss = simulate_losses(n_layers, seed, measure)
    parent = problem.dense
    rounds: list[list[Mask]] = []
    for _ in range(n_remove):
        rounds.append(list(problem.children([parent])))
        parent = min(rounds[-1], key=lambda mask: (loss(mask), mask))
    return search_of(rounds, loss, n_layers, n_remove, search_id, measure)
