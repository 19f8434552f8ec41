"""Reverse order: remove the deepest layers.

Source: the reverse-order baseline of Lu et al. 2024 (Reassessing Layer Pruning in LLMs, arXiv 2411.15558). It is a
strong baseline after fine-tuning.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from raysearch.core.problem import Problem
from raysearch.searchers.base import Round, Searcher, SearchGenerator


@dataclass(frozen=True)
class ReverseOrderSearcher(Searcher):
    """Removes the last M removable layers: one evaluation."""

    solves_additive = False
    uses_objective = False

    @override
    def search(self, problem: Problem, rng: np.random.Generator) -> SearchGenerator:
        scores = yield Round([problem.completed(problem.dense, reversed(problem.free))])
        return scores.best(1)[0]
