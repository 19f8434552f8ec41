"""Genetic search over masks of M layers, started from the costs of single layers.

Source: the prior-guided GA of Kim et al. 2026 (arXiv 2604.24938), section 4.2: population 16, elitism 0.2, mutation
0.15, 10 generations, the ablation losses s_i biasing the initial population. The paper gives no operators; those here
are the usual ones for subsets of fixed size: parents by tournament, what they share is inherited, a swap mutates. Nor
does it say that the one-shot mask is in the first population.
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
_TRIES = 30  # attempts to breed one new child


@dataclass(frozen=True)
class GeneticSearcher(Searcher):
    """Breeds masks of M layers, never the same one twice.

    With E = round(elitism x population) it costs population + generations x (population - E) evaluations, fewer where
    masks run out, and with the ablation prior F more for F removable layers. The record gets the share of children
    that were mutated: `mutation` of them, and each that would have repeated a mask.

    Args:
        population: Masks in a generation, at least 2.
        generations: How often the population is renewed, at least 1.
        elitism: The share of the population that survives into the next, 0 … 1 (1 excluded).
        mutation: The probability that a child has one removed layer exchanged for a kept one, 0 … 1. A child that
            repeats a mask is bred again and always mutated.
        prior: The costs s_i of layers, by which the first population is drawn with probabilities
            softmax(-s_i / temperature): "ablation" (single-layer losses), "influence" (Block Influence, from one dense
            pass) or "none" (uniformly).
        cheapest: Whether the mask of the M cheapest layers is one of the first population, unless there is no prior.
            With the ablation prior it is the one-shot mask, so that the search never ends with a worse one.
        temperature: Of that softmax, above 0, in robust standard deviations of s_i. At 1, a layer that is cheaper by
            one of them is e times likelier to be drawn.
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
        losses, asked = dict(scores.losses), set(founders)
        n_bred = n_mutated = 0
        for left in reversed(range(self.generations)):
            children = self._breed(problem, rng, population, asked)
            if not children:
                break  # every mask within reach has been scored
            n_bred, n_mutated = n_bred + len(children), n_mutated + sum(children.values())
            # Parents are drawn by rank, so that every child must be known; but the last ones have no children.
            scores = yield Round([*children]) if left else Round([*children], keep=1, beat=population[0])
            losses.update(scores.losses)
            asked.update(children)
            population = population[: self.n_elite] + list(scores.losses) or population
            population.sort(key=lambda mask: (losses[mask], mask))
        if n_bred:
            yield Remark("mutated_share", n_mutated / n_bred)
        return min(losses, key=lambda mask: (losses[mask], mask))

    def _breed(
        self, problem: Problem, rng: np.random.Generator, population: Sequence[Mask], asked: Collection[Mask]
    ) -> dict[Mask, bool]:
        """Return new masks, and of each whether it is a mutant: as many as the elite leaves room for, or as exist."""
        children: dict[Mask, bool] = {}
        for _ in range(self.population - self.n_elite):
            for attempt in range(_TRIES):
                child = cross(problem, rng, select(population, rng), select(population, rng))
                # A repeat teaches nothing, so from the second attempt on the child is always mutated.
                mutant = attempt > 0 or rng.random() < self.mutation
                if mutant:
                    child = mutate(problem, rng, child)
                if child not in asked and child not in children:
                    children[child] = mutant
                    break
        return children


def select(population: Sequence[Mask], rng: np.random.Generator) -> Mask:
    """Return the best of a few drawn masks; `population` is ordered, best first."""
    return population[int(rng.integers(len(population), size=_TOURNAMENT).min())]


def cross(problem: Problem, rng: np.random.Generator, mother: Mask, father: Mask) -> Mask:
    """Inherit the layers that both parents remove, and fill up with layers that one of them removes."""
    common = mother & father
    either = (mother ^ father).layers
    rest = rng.permutation(len(either))[: problem.n_remove - len(common)]
    return common | (either[index] for index in rest)


def mutate(problem: Problem, rng: np.random.Generator, mask: Mask) -> Mask:
    """Exchange one removed layer for a kept one that may be removed."""
    kept = [layer for layer in problem.free if layer not in mask]
    if not kept:
        return mask
    return mask - [mask.layers[rng.integers(len(mask))]] | [kept[rng.integers(len(kept))]]
