"""Masks of M layers: random ones, all of them, the cheapest; and runs of consecutive layers."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.searchers.base import Ties

#: A layer of unknown cost is drawn only when nothing else is left to draw.
_LAST_RESORT = -1e9


def draw_mask(problem: Problem, rng: np.random.Generator, logits: NDArray[np.float64] | None = None) -> Mask:
    """Draw M of the free layers without replacement, one after another with probabilities softmax(logits).

    Adding Gumbel noise to each logit and taking the M largest does the same (Kool et al. 2019, arXiv 1903.06059). The
    logits are one for each layer of ``problem.free``; None draws uniformly.
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
    """Draw distinct masks as `draw_mask` does, none of them in `avoid`; fewer than `count` if there are not enough."""
    drawn: dict[Mask, None] = {}
    for _ in range(20 * min(count, problem.n_solutions)):
        if len(drawn) == count:
            return list(drawn)
        mask = draw_mask(problem, rng, logits)
        if mask not in avoid:
            drawn[mask] = None
    if problem.n_solutions <= 100 * (count + len(avoid)):  # few are left, so list them
        left = [mask for mask in all_masks(problem) if mask not in avoid and mask not in drawn]
        drawn.update((left[index], None) for index in rng.permutation(len(left))[: count - len(drawn)])
    elif logits is not None:  # which leave too few masks within reach
        return [*drawn, *draw_masks(problem, rng, count - len(drawn), {*avoid, *drawn})]
    return list(drawn)


def all_masks(problem: Problem) -> list[Mask]:
    """Return every legal mask of M layers, in mask order."""
    return [Mask(layers) for layers in combinations(problem.free, problem.n_remove)]


def swaps(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return every exchange of a one for a zero in each of some rows with as many ones [m, n]: [m, zeros x ones, n].

    A row without zeros is given back as it is.
    """
    ones, zeros = (np.nonzero(places)[1].reshape(len(rows), -1) for places in (rows > 0, rows == 0))
    if not zeros.size:
        return rows[:, None]
    into, out_of = np.repeat(zeros, ones.shape[1], axis=1), np.tile(ones, zeros.shape[1])
    swapped = np.repeat(rows[:, None], into.shape[1], axis=1)
    np.put_along_axis(swapped, into[..., None], 1.0, axis=2)
    np.put_along_axis(swapped, out_of[..., None], 0.0, axis=2)
    return swapped


def runs(layers: Iterable[int], length: int) -> list[Mask]:
    """Return every run of `length` consecutive layers among some, in mask order."""
    among = set(layers)
    windows = [range(start, start + length) for start in sorted(among)]
    return [Mask(tuple(window)) for window in windows if among.issuperset(window)]


def cheapest_mask(problem: Problem, costs: NDArray[np.float64], ties: Ties = "earlier") -> Mask:
    """Return the mask of the M cheapest layers, by costs of ``problem.free``; those of unknown cost (NaN) come last."""
    places = np.arange(len(costs))
    order = np.lexsort((places if ties == "earlier" else -places, costs))  # NaN is last
    return Mask.of(*np.array(problem.free)[order[: problem.n_remove]].tolist())


def logits_of(costs: NDArray[np.float64], temperature: float) -> NDArray[np.float64]:
    """Return -cost / temperature for costs of ``problem.free``, standardised by median and interquartile range.

    One or two layers whose removal ruins the model (usually the first) would dominate a standard deviation, but not the
    quartiles. An unknown cost is NaN; not all of them may be.
    """
    low, middle, high = np.nanquantile(costs, [0.25, 0.5, 0.75])
    scale = (high - low) / 1.349 or 1.0  # 1.349 standard deviations lie between a normal's quartiles
    return np.where(np.isnan(costs), _LAST_RESORT, (middle - costs) / (scale * temperature))
