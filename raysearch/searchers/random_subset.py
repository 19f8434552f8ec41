"""Random subsets: the best of k random masks. Every other searcher should do better.

Source: the random baseline of depth pruning, uniform over the subsets of M layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from pydantic import PositiveInt
from typing_extensions import override

from raysearch.core.problem import Problem
from raysearch.searchers.base import Round, Searcher, SearchGenerator
from raysearch.searchers.toolbox.subsets import draw_masks


@dataclass(frozen=True)
class RandomSubsetSearcher(Searcher):
    """Draws `k` masks without repetition and keeps the best: k evaluations, or all masks if those are fewer.

    Args:
        k: How many masks to draw, at least 1.
    """

    solves_additive = False
    stochastic = True

    k: PositiveInt = 20

    @property
    @override
    def uses_objective(self) -> bool:
        return self.k > 1  # a single mask is the best one whatever its loss

    @override
    def search(self, problem: Problem, rng: np.random.Generator) -> SearchGenerator:
        scores = yield Round(draw_masks(problem, rng, self.k), keep=1)
        return scores.best(1)[0]
