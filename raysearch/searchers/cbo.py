"""Constrained binary optimisation: build a quadratic model of the loss and evaluate its lowest states.

    E(S) = sum_{i in S} d_i + sum_{i<j in S} Q_ij

Source: Jansen et al. 2026 (arXiv 2602.00161): block removal as an Ising problem with sum_i x_i = M, whose low-lying
states are evaluated, since the lowest is often not the best. The model E of D(S) = L(S) - L(dense) comes from

- ablation: d_i = D({i}) and Q_ij = D({i,j}) - d_i - d_j are measured by removing single layers and pairs. For M <= 2
  the model is exact. This source is ours: Kim et al. 2026 (arXiv 2604.24938), section 4.2, score CBO by "our unified
  calibration metric" and do not specify its couplings.
- gradients, as in Jansen et al.: each layer has a gate a_i, and A_si = d loss_s / d a_i at the dense model. D is
  expanded to second order, with H = A^T A / S (the empirical Fisher matrix) in place of the Hessian:
  d_i = H_ii / 2 - mean_s A_si and Q_ij = H_ij. The paper drops the first order, mean_s A_si. Its gates are on the
  outputs of attention and MLP. The gate on the whole layer is ours, and so is the rule that keeps the first order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import PositiveFloat, PositiveInt
from scipy.special import stdtrit
from typing_extensions import override

from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.core.statistic import Statistic
from raysearch.errors import EvaluationError, UserError
from raysearch.searchers.base import Remark, Round, Scores, Searcher, SearchGenerator
from raysearch.searchers.toolbox.ising import Ising, LowestStates, enumerate_lowest, prove_lowest, swap_lowest
from raysearch.searchers.toolbox.subsets import overlaps

_ENUMERABLE = 300_000_000  # the most states to enumerate: some seconds on one thread
_LEVEL = 0.01  # significance level of the test that the mean gradients are 0


@dataclass(frozen=True)
class CboSearcher(Searcher):
    """Models the loss by single layers and pairs, solves the model and scores its k lowest masks.

    With gradients it costs k evaluations and one forward and backward pass. With ablation and F removable layers, it
    costs F (F + 1) / 2 + k evaluations, and that of the dense model. A layer is not removed if its ablation failed. The
    two layers of a pair are not removed together if the ablation of the pair failed. The number of proven states and
    the solver's gap are recorded. With gradients, their mean (gate_gradient) and mean square (gate_fisher) for each
    layer are recorded too.

    Args:
        k: How many of the lowest states are scored, at least 1.
        couplings: The source of the model: "ablation" (the losses of single layers and pairs) or "gradient".
        first_order: Whether the model has first-order terms in addition to the second order. Ablation measures both,
            so it needs them. The paper drops those of gradients, which are 0 if the model was trained to convergence on
            this loss. None keeps them unless the mean gradients of all layers are within the noise of the samples
            (Student's t at 1 %, shared over the layers); the decision is recorded.
        time_limit_s: The time limit of the solver's proof, above 0. Only more than 3e8 masks need a proof; fewer are
            enumerated. At the limit the search uses the states of a local search, so a repeated search proposes the
            same masks, unless the solver proved a better state in one of the two searches.
    """

    k: PositiveInt = 20
    couplings: Literal["ablation", "gradient"] = "ablation"
    first_order: bool | None = None
    time_limit_s: PositiveFloat = 60.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.couplings == "ablation" and self.first_order is False:
            raise UserError(
                "searcher.first_order=false drops what searcher.couplings=ablation measures; use first_order=true, or "
                "couplings=gradient"
            )

    @override
    def search(self, problem: Problem, rng: np.random.Generator) -> SearchGenerator:
        cause = ""
        if self.couplings == "gradient":
            gradients = yield Statistic.GATE_GRADIENTS
            yield Remark("gate_gradient", gradients.mean(axis=0).tolist())
            yield Remark("gate_fisher", (gradients**2).mean(axis=0).tolist())
            has_first_order = self.first_order
            if has_first_order is None:
                has_first_order = stands_out(gradients[:, problem.free])
                yield Remark("first_order", "kept" if has_first_order else "dropped")
            layers = list(problem.free)
            model = gradient_model(gradients[:, problem.free], has_first_order, overlaps(problem))
        else:
            pairs = filter(problem.is_legal, map(Mask, combinations(problem.free, 2))) if problem.n_remove > 1 else ()
            scores = yield Round([problem.dense, *problem.singles, *pairs])
            layers, model = pair_model(problem, scores)
            cause = next(iter(scores.failed.values()), "")
        lowest = lowest_states(model, problem.n_remove, self.k, rng, self.time_limit_s)
        if not lowest.states:
            raise EvaluationError(
                f"no mask of {problem.n_remove} {problem.plural} is left: too many pairs could not be evaluated: "
                f"{cause}"
            )
        yield Remark("proven_states", lowest.proven)
        yield Remark("solver_gap", lowest.gap)
        candidates = [Mask.of(*(layers[variable] for variable in state)) for state in lowest.states]
        scores = yield Round(candidates, keep=1)
        return scores.best(1)[0]


def pair_model(problem: Problem, scores: Scores) -> tuple[list[int], Ising]:
    """Build the model from ablations.

    Args:
        problem: The space of legal masks.
        scores: The scores of the dense model, of all single layers and, if M > 1, of all pairs.

    Returns:
        The layer of each variable of the model, and the model.

    Raises:
        EvaluationError: The dense model, or too many single layers, could not be evaluated.
    """
    if problem.dense not in scores:
        raise EvaluationError(f"the dense model could not be evaluated: {scores.failed[problem.dense]}")
    dense = scores[problem.dense]
    layers = [layer for layer in problem.free if Mask.of(layer) in scores]
    if len(layers) < problem.n_remove:
        raise EvaluationError(
            f"only {len(layers)} of {len(problem.free)} {problem.plural} could be ablated, too few to remove "
            f"{problem.n_remove}: {next(iter(scores.failed.values()))}"
        )
    linear = np.array([scores[Mask.of(layer)] - dense for layer in layers])
    couplings = np.zeros((len(layers), len(layers)))
    forbidden = np.zeros(couplings.shape, dtype=np.bool_)
    for i, j in combinations(range(len(layers)), 2):
        pair = Mask.of(layers[i], layers[j])
        if pair in scores:
            couplings[i, j] = couplings[j, i] = scores[pair] - dense - linear[i] - linear[j]
        elif problem.n_remove > 1:
            forbidden[i, j] = forbidden[j, i] = True
    return layers, Ising(linear, couplings, forbidden)


def stands_out(rows: NDArray[np.float64]) -> bool:
    """Return whether the mean of any column differs from 0 by more than the noise of its rows [S, F].

    The noise of a single row is unknown, so the answer is then True.
    """
    n_rows, n_columns = rows.shape
    if n_rows < 2:
        return True
    errors = rows.std(axis=0, ddof=1) / math.sqrt(n_rows)
    threshold = -float(stdtrit(n_rows - 1, _LEVEL / (2 * n_columns)))  # in standard errors
    return bool((np.abs(rows.mean(axis=0)) > threshold * errors).any())


def gradient_model(gradients: NDArray[np.float64], first_order: bool, forbidden: NDArray[np.bool_]) -> Ising:
    """Return the quadratic model of the loss from gradients of the gates.

    Args:
        gradients: d loss_s / d a_i of each removable layer's gate, at the dense model [S, F].
        first_order: Whether the model has first-order terms.
        forbidden: The pairs of layers that no mask may have [F, F].

    Returns:
        The energy of a state, whose variables are the removable layers.
    """
    fisher = gradients.T @ gradients / len(gradients)
    linear = np.diag(fisher) / 2
    if first_order:
        linear = linear - gradients.mean(axis=0)
    couplings = fisher - np.diag(np.diag(fisher))
    return Ising(linear, couplings, forbidden)


def lowest_states(model: Ising, size: int, count: int, rng: np.random.Generator, time_limit_s: float) -> LowestStates:
    """Return the states of lowest energy, by enumeration if that takes seconds, else by local search and a proof.

    Args:
        model: The energy of a state.
        size: How many variables of a state are 1.
        count: How many states to return.
        rng: It draws the starts of the local search.
        time_limit_s: The time limit of the proof; at the limit, the states of the local search are returned.

    Returns:
        The states, lowest first, and how many of them are proven.
    """
    if math.comb(len(model.linear), size) <= _ENUMERABLE:
        return enumerate_lowest(model, size, count)
    return prove_lowest(model, size, count, swap_lowest(model, size, count, rng), time_limit_s)
