"""Masks of M layers: random ones, all of them, the cheapest; and runs of consecutive layers."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np
from numpy.typing import NDArray

from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.searchers.base import Ties

#: The logit of a layer of unknown cost: it is drawn only after all layers of known cost.
_LAST_RESORT = -1e9


def draw_mask(problem: Problem, rng: np.random.Generator, logits: NDArray[np.float64] | None = None) -> Mask:
    """Draw M of the free layers without replacement, one after another with probabilities softmax(logits).

    Without logits all masks have the same probability, also if sites overlap.

    Args:
        problem: The space of legal masks.
        rng: The source of random numbers.
        logits: The logit of each layer of ``problem.free`` [F]; None for a uniform draw.

    Returns:
        A mask of M layers.

    Source: Kool et al. 2019 (arXiv 1903.06059): adding Gumbel noise to each logit and taking the M largest sums has
    the same distribution.
    """
    if logits is None and problem.has_overlaps:
        return problem.draw(rng)
    free = np.array(problem.free)
    keys = rng.gumbel(size=len(free)) + (0.0 if logits is None else logits)
    return problem.completed(problem.dense, free[np.argsort(-keys, kind="stable")].tolist())


def draw_masks(
    problem: Problem,
    rng: np.random.Generator,
    count: int,
    avoid: Collection[Mask] = (),
    logits: NDArray[np.float64] | None = None,
) -> list[Mask]:
    """Draw distinct masks like `draw_mask`.

    Args:
        problem: The space of legal masks.
        rng: The source of random numbers.
        count: How many masks to draw; it returns fewer if fewer exist.
        avoid: Masks that are not drawn.
        logits: The logit of each layer of ``problem.free`` [F]; None for a uniform draw.

    Returns:
        Distinct masks of M layers, in the order of the draw.
    """
    drawn: dict[Mask, None] = {}
    for _ in range(20 * min(count, problem.n_solutions)):
        if len(drawn) == count:
            return list(drawn)
        mask = draw_mask(problem, rng, logits)
        if mask not in avoid:
            drawn[mask] = None
    if problem.n_solutions <= 100 * (count + len(avoid)):  # the space is small, so list it
        undrawn = [mask for mask in all_masks(problem) if mask not in avoid and mask not in drawn]
        drawn.update((undrawn[index], None) for index in rng.permutation(len(undrawn))[: count - len(drawn)])
    elif logits is not None:  # they make the missing masks too unlikely, so draw those uniformly
        return [*drawn, *draw_masks(problem, rng, count - len(drawn), {*avoid, *drawn})]
    return list(drawn)


def all_masks(problem: Problem) -> list[Mask]:
    """Return every legal mask of M layers, in mask order."""
    return [*problem.solutions()]


def overlaps(problem: Problem) -> NDArray[np.bool_]:
    """Return which removable sites have halves in common, so that no mask has both [F, F]."""
    sites = np.array(problem.free)
    return np.array([np.isin(sites, [*problem.sites.overlaps[site]]) for site in problem.free])


def swaps(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return every row that results from exchanging a one for a zero [m, zeros x ones, n].

    All rows [m, n] have the same number of ones. Rows without zeros are returned unchanged [m, 1, n].
    """
    one_places = np.nonzero(rows > 0)[1].reshape(len(rows), -1)
    zero_places = np.nonzero(rows == 0)[1].reshape(len(rows), -1)
    if not zero_places.size:
        return rows[:, None]
    added = np.repeat(zero_places, one_places.shape[1], axis=1)
    removed = np.tile(one_places, zero_places.shape[1])
    swapped = np.repeat(rows[:, None], added.shape[1], axis=1)
    np.put_along_axis(swapped, added[..., None], 1.0, axis=2)
    np.put_along_axis(swapped, removed[..., None], 0.0, axis=2)
    return swapped


def runs(problem: Problem, layers: Iterable[int], length: int) -> list[Mask]:
    """Return every run of consecutive layers, in mask order. In a run of pairs, each begins where the last one ends.

    Args:
        problem: The space of legal masks.
        layers: The layers of which the runs consist.
        length: The number of layers of a run.

    Returns:
        The masks, each of `length` layers.
    """
    available = set(layers)
    masks = []
    for start in sorted(available):
        run: list[int] = []
        layer: int | None = start
        while layer in available and len(run) < length:
            run.append(layer)
            layer = problem.sites.next_sites[layer]
        if len(run) == length:
            masks.append(Mask(tuple(run)))
    return masks


def cheapest_mask(problem: Problem, costs: NDArray[np.float64], ties: Ties = "earlier") -> Mask:
    """Return the mask of the M cheapest layers.

    Args:
        problem: The space of legal masks.
        costs: The cost of each layer of ``problem.free`` [F]; layers of unknown cost (NaN) come last.
        ties: Which of two layers of equal cost is cheaper.

    Returns:
        A mask of M layers.
    """
    places = np.arange(len(costs))
    order = np.lexsort((places if ties == "earlier" else -places, costs))  # NaN is last
    return problem.completed(problem.dense, np.array(problem.free)[order].tolist())


def logits_of(costs: NDArray[np.float64], temperature: float) -> NDArray[np.float64]:
    """Return the logits -cost / temperature, with costs standardised by median and interquartile range.

    The removal of one or two layers (usually the first) ruins the model. Their costs would dominate a standard
    deviation, but not the quartiles.

    Args:
        costs: The cost of each removable layer [F]; NaN if unknown. At least one must be known.
        temperature: A higher temperature makes the logits more equal, above 0.

    Returns:
        The logits [F]. A layer of unknown cost has a very low one.
    """
    low, middle, high = np.nanquantile(costs, [0.25, 0.5, 0.75])
    scale = (high - low) / 1.349 or 1.0  # the quartiles of a normal distribution are 1.349 standard deviations apart
    return np.where(np.isnan(costs), _LAST_RESORT, (middle - costs) / (scale * temperature))
