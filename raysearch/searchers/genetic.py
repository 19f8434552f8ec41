"""Genetic search over masks of M layers, started from the costs of single layers.

Source: the prior-guided GA of Kim et al. 2026 (arXiv 2604.24938), section 4.2: population 16, elitism 0.2, mutation
0.15, 10 generations, an initial population biased by the ablation losses s_i. The paper gives no operators. The usual
ones for subsets of fixed size are used: tournaments select the parents, a child inherits the layers that both parents
remove, and a mutation swaps two layers. The one-shot mask in the first population is ours too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt
from typing_extensions import override

from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.errors import UserError
from raysearch.searchers.base import Remark, Round, Searcher, SearchGenerator
from raysearch.searchers.toolbox.priors import Prior, layer_costs
from raysearch.searchers.toolbox.subsets import cheapest_mask, draw_masks, logits_of

_TOURNAMENT = 3  # masks that compete to be a parent
_ATTEMPTS = 30  # to breed one new child


@dataclass(frozen=True)
class GeneticSearcher(Searcher):
    """Breeds masks of M layers, never the same one twice.

    With E = round(elitism x population) it costs population + generations x (population - E) evaluations, and fewer
    when no new masks are left. The ablation prior costs F more for F removable layers. The share of mutated children
    is recorded; it is higher than `mutation`, since each child that would repeat a mask is mutated too.

    Args:
        population: Masks in a generation, at least 2.
        generations: How often the population is renewed, at least 1.
        elitism: The share of the population that survives into the next generation, 0 … 1 (1 excluded).
        mutation: The probability that a child has one removed layer exchanged for a kept one, 0 … 1. A child that
            repeats a mask is bred again and always mutated.
        prior: The costs s_i of the layers: "ablation" (single-layer losses), "influence" (Block Influence, from one
            dense pass) or "none" (equal costs). The first population is drawn with probabilities
            softmax(-s_i / temperature).
        cheapest: Whether the mask of the M cheapest layers is in the first population. It needs a prior. With the
            ablation prior it is the one-shot mask, so the search never ends with a worse mask.
        temperature: The temperature of that softmax, above 0, in robust standard deviations of s_i. At 1, a layer that
            is cheaper by one standard deviation is e times likelier to be drawn.
    """

    stochastic = True

    population: Annotated[int, Field(ge=2, le=10**6)] = 16
    generations: PositiveInt = 10
    elitism: float = 0.2
    mutation: Annotated[float, Field(ge=0, le=1)] = 0.15
    prior: Prior = "ablation"
    temperature: PositiveFloat = 1.0
    cheapest: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.elitism < 1 or self.n_elite >= self.population:
            raise UserError(
                f"searcher.elitism={self.elitism} is not a share of the {self.population} masks that leaves room for "
                "children; use 0 or more, and less than 1"
            )

    @property
    def n_elite(self) -> int:
        """The number of masks that survive a generation."""
        return round(self.elitism * self.population)

    @override
    def search(self, problem: Problem, rng: np.random.Generator) -> SearchGenerator:
        costs = yield from layer_costs(problem, self.prior)
        founders = [cheapest_mask(problem, costs)] if self.cheapest and self.prior != "none" else []
        logits = logits_of(costs, self.temperature)
        founders += draw_masks(problem, rng, self.population - len(founders), founders, logits)

        scores = yield Round(founders)
        population = scores.best(self.population)
        losses = dict(scores.losses)
        proposed = set(founders)
        n_bred = n_mutated = 0
        for generations_left in reversed(range(self.generations)):
            children = self._breed(problem, rng, population, proposed)
            if not children:
                break  # every mask within reach has been scored
            n_bred += len(children)
            n_mutated += sum(children.values())
            if generations_left:  # parents are drawn by rank, so every loss is needed
                scores = yield Round([*children])
            else:  # the last generation has no children, so only a better mask matters
                scores = yield Round([*children], keep=1, beat=population[0])
            losses.update(scores.losses)
            proposed.update(children)
            survivors = [*population[: self.n_elite], *scores.losses]
            if survivors:  # without an elite, all masks of a generation may fail
                population = sorted(survivors, key=lambda mask: (losses[mask], mask))
        if n_bred:
            yield Remark("mutated_share", n_mutated / n_bred)
        return min(losses, key=lambda mask: (losses[mask], mask))

    def _breed(
        self, problem: Problem, rng: np.random.Generator, population: Sequence[Mask], proposed: Collection[Mask]
    ) -> dict[Mask, bool]:
        """Return the new masks of a generation, and whether each is a mutant; fewer masks if no more can be bred."""
        children: dict[Mask, bool] = {}
        for _ in range(self.population - self.n_elite):
            for attempt in range(_ATTEMPTS):
                child = cross(problem, rng, select(population, rng), select(population, rng))
                # A repeated mask gives no new loss, so from the second attempt on the child is always mutated.
                mutant = attempt > 0 or rng.random() < self.mutation
                if mutant:
                    child = mutate(problem, rng, child)
                if child not in proposed and child not in children:
                    children[child] = mutant
                    break
        return children


def select(population: Sequence[Mask], rng: np.random.Generator) -> Mask:
    """Return the winner of a tournament.

    Args:
        population: The masks, best first.
        rng: It draws the masks that compete.

    Returns:
        The best of the masks that compete.
    """
    return population[int(rng.integers(len(population), size=_TOURNAMENT).min())]


def cross(problem: Problem, rng: np.random.Generator, mother: Mask, father: Mask) -> Mask:
    """Return a child: it removes the layers that both parents remove, and a random part of those that one removes.

    If pairs of the two parents overlap, free pairs complete it.

    Args:
        problem: The space of legal masks.
        rng: It draws the layers that only one parent removes.
        mother: One parent.
        father: The other parent.

    Returns:
        A mask of M layers.
    """
    common = mother & father
    of_one_parent = (mother ^ father).layers
    child = problem.completed(common, [of_one_parent[index] for index in rng.permutation(len(of_one_parent))])
    if len(child) < problem.n_remove:
        child = problem.completed(child, rng.permutation(problem.free).tolist())
    return child


def mutate(problem: Problem, rng: np.random.Generator, mask: Mask) -> Mask:
    """Return the mask with one removed layer exchanged for a kept layer that may be removed.

    Args:
        problem: The space of legal masks.
        rng: It draws the two layers.
        mask: The mask to mutate; it is returned unchanged if all removable layers are removed.

    Returns:
        The mutated mask, of the same size.
    """
    if len(mask) == len(problem.free):
        return mask
    removed_layer = mask.layers[rng.integers(len(mask))]
    others = mask - [removed_layer]
    kept_layers = [layer for layer in problem.allowed_with(others) if layer != removed_layer]
    return others | [kept_layers[rng.integers(len(kept_layers))]] if kept_layers else mask
