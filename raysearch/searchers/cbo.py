"""Constrained binary optimisation: a quadratic model of the loss, its lowest states, and the best of those.

    E(S) = sum_{i in S} d_i + sum_{i<j in S} Q_ij,    Q_ij = D({i,j}) - D({i}) - D({j}),    D(S) = L(S) - L(dense)

Source: Jansen et al. 2026 (arXiv 2602.00161): block removal as an Ising problem with sum_i x_i = M, whose low-lying
states are evaluated, since the lowest is often not the best. They take the couplings from gradients, with no linear
term; here, as in Kim et al. 2026 (arXiv 2604.24938), section 4.2, the calibration loss itself is what is modelled:
d_i = D({i}) and Q_ij are measured by removing single layers and pairs. For M <= 2 the model is exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from raysearch.errors import EvaluationError, UserError
from raysearch.mask import Mask
from raysearch.problem import Problem
from raysearch.searchers.base import Round, Scores, SearchGenerator
from raysearch.searchers.toolbox.ising import Ising, LowestStates, enumerate_lowest, swap_lowest
from raysearch.searchers.toolbox.ising_milp import prove_lowest

_ENUMERABLE = 300_000_000  # states: some seconds on one thread


@dataclass(frozen=True)
class CboSearcher:
    """Measures all singles and pairs, solves the quadratic model and scores its k lowest masks.

    With F removable layers it costs F (F + 1) / 2 + k evaluations, and the dense model. A layer whose ablation failed
    is not removed, and neither are both layers of a pair that failed.

    Args:
        k: How many of the lowest states are scored, at least 1.
        time_limit_s: How long the solver may take where it proves its states instead of enumerating them (more than
            3e8 masks), above 0. When time is up the states of a local search stand, so a repeated search proposes the
            same masks unless the solver did better than that in one of them and not in the other.
    """

    k: int = 20
    time_limit_s: float = 60.0

    def __post_init__(self) -> None:
        if self.k < 1:
            raise UserError(f"searcher.k={self.k} scores no mask; use 1 or more")
        if not self.time_limit_s > 0:
            raise UserError(f"searcher.time_limit_s={self.time_limit_s} leaves no time to solve; use a number above 0")

    def search(self, problem: Problem, rng: np.random.Generator) -> SearchGenerator:
        """See `raysearch.searchers.base`."""
        pairs = [Mask(pair) for pair in combinations(problem.free, 2)] if problem.n_remove > 1 else []
        scores = yield Round([problem.dense, *problem.singles, *pairs])
        layers, model = pair_model(problem, scores)
        lowest = lowest_states(model, problem.n_remove, self.k, rng, self.time_limit_s)
        if not lowest.states:
            raise EvaluationError(
                f"no mask of {problem.n_remove} layers is left: too many pairs could not be evaluated: "
                f"{next(iter(scores.failed.values()))}"
            )
        candidates = [Mask.of(*(layers[variable] for variable in state)) for state in lowest.states]
        scores = yield Round(candidates, keep=1)
        return scores.best(1)[0]


def pair_model(problem: Problem, scores: Scores) -> tuple[list[int], Ising]:
    """The quadratic model of the loss from the scores of the dense model, the singles and the pairs.

    Returns:
        The layer that each variable stands for, and the model over those variables.

    Raises:
        EvaluationError: The dense model or too many layers could not be evaluated.
    """
    if problem.dense not in scores.losses:
        raise EvaluationError(f"the dense model could not be evaluated: {scores.failed[problem.dense]}")
    dense = scores[problem.dense]
    layers = [layer for layer in problem.free if Mask.of(layer) in scores.losses]
    if len(layers) < problem.n_remove:
        raise EvaluationError(
            f"only {len(layers)} of {len(problem.free)} layers could be ablated, too few to remove {problem.n_remove}: "
            f"{next(iter(scores.failed.values()))}"
        )
    linear = np.array([scores[Mask.of(layer)] - dense for layer in layers])
    couplings = np.zeros((len(layers), len(layers)))
    forbidden = np.zeros(couplings.shape, dtype=np.bool_)
    for i, j in combinations(range(len(layers)), 2):
        pair = Mask.of(layers[i], layers[j])
        if pair in scores.losses:
            couplings[i, j] = couplings[j, i] = scores[pair] - dense - linear[i] - linear[j]
        elif problem.n_remove > 1:
            forbidden[i, j] = forbidden[j, i] = True
    return layers, Ising(linear, couplings, forbidden)


def lowest_states(model: Ising, size: int, count: int, rng: np.random.Generator, time_limit_s: float) -> LowestStates:
    """The `count` states of lowest energy: enumerated where that takes seconds, else searched for and then proven.

    Args:
        model: The model.
        size: How many variables are 1, 1 … n.
        count: How many states are wanted.
        rng: Draws the starts of the local search.
        time_limit_s: How long the proof may take; when it stops, the states of the local search stand.
    """
    if math.comb(len(model.linear), size) <= _ENUMERABLE:
        return enumerate_lowest(model, size, count)
    return prove_lowest(model, size, count, swap_lowest(model, size, count, rng), time_limit_s)
