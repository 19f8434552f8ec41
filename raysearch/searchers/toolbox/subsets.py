"""Draws masks of M layers, uniformly or by a prior over layers, and reads that prior from single-layer ablations.

Not a searcher: what the stochastic ones share.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from raysearch.mask import Mask
from raysearch.problem import Problem
from raysearch.searchers.base import Scores

#: A layer without an ablation loss is drawn only when nothing else is left to draw.
_LAST_RESORT = -1e9


def draw_mask(problem: Problem, rng: np.random.Generator, logits: NDArray[np.float64] | None = None) -> Mask:
    """Draws M of the free layers without replacement, one after another with probabilities softmax(logits).

    To perturb each logit by Gumbel noise and take the M largest draws exactly so (Kool et al. 2019, arXiv 1903.06059).

    Args:
        problem: The space of legal masks.
        rng: The source of random numbers.
        logits: One for each layer of ``problem.free``; None draws uniformly.
    """
    free = np.array(problem.free)
    keys = rng.gumbel(size=len(free)) + (0.0 if logits is None else logits)
    return Mask.of(*free[np.argsort(-keys, kind="stable")[: problem.n_remove]].tolist())


def draw_masks(
    problem: Problem,
    rng: np.random.Generator,
    count: int,
    avoid: Collection[Mask] = (),
    logits: NDArray[np.float64] | None = None,
) -> list[Mask]:
    """Draws distinct masks of M layers, none of them in `avoid`; fewer than `count` where that many do not exist.

    Args:
        problem: The space of legal masks.
        rng: The source of random numbers.
        count: How many to draw.
        avoid: Masks not to draw.
        logits: As in `draw_mask`.
    """
    drawn: dict[Mask, None] = {}
    for _ in range(20 * count):
        if len(drawn) == count:
            return list(drawn)
        mask = draw_mask(problem, rng, logits)
        if mask not in avoid:
            drawn[mask] = None
    if problem.n_solutions <= 100 * (count + len(avoid)):  # luck runs out only where few are left: list those
        left = [mask for mask in all_masks(problem) if mask not in avoid and mask not in drawn]
        drawn.update((left[index], None) for index in rng.permutation(len(left))[: count - len(drawn)])
    return list(drawn)


def all_masks(problem: Problem) -> list[Mask]:
    """Every legal mask of M layers, in mask order."""
    return [Mask(layers) for layers in combinations(problem.free, problem.n_remove)]


def one_shot_mask(problem: Problem, ablations: Scores) -> Mask:
    """The M layers whose single removal costs least; a layer without a loss comes after all others."""
    order = sorted(problem.singles, key=lambda single: (ablations.losses.get(single, np.inf), single))
    return Mask.of(*(layer for single in order[: problem.n_remove] for layer in single))


def ablation_logits(problem: Problem, ablations: Scores, temperature: float) -> NDArray[np.float64]:
    """-s_i / temperature, with the ablation losses s_i standardised by median and interquartile range.

    A layer or two whose removal ruins the model (the first one, as a rule) would stretch a standard deviation until all
    other layers looked alike; quartiles do not notice them.

    Args:
        problem: The space of legal masks.
        ablations: The scores of ``problem.singles``, at least one of them a loss.
        temperature: Above 0; the higher, the nearer to uniform.

    Returns:
        One logit for each layer of ``problem.free``.
    """
    low, middle, high = np.quantile(list(ablations.losses.values()), [0.25, 0.5, 0.75])
    scale = (high - low) / 1.349 or 1.0  # 1.349 standard deviations lie between a normal's quartiles
    losses = np.array([ablations.losses.get(single, np.inf) for single in problem.singles])
    logits: NDArray[np.float64] = np.where(np.isinf(losses), _LAST_RESORT, (middle - losses) / (scale * temperature))
    return logits
