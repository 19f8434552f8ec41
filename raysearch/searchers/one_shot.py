"""One-shot pruning: remove the M layers whose single removal costs least.

Source: Kim et al. 2026 (arXiv 2604.24938), section 4.2; the score is the single-layer ablation loss s_i of section 4.2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from raysearch.core.problem import Problem
from raysearch.searchers.base import Round, Searcher, SearchGenerator, Ties
from raysearch.searchers.toolbox.priors import layer_costs
from raysearch.searchers.toolbox.subsets import cheapest_mask


@dataclass(frozen=True)
class OneShotSearcher(Searcher):
    """Ablates every removable layer alone and removes the M best: F + 1 evaluations for F removable layers.

    Args:
        ties: Which of two layers of equal loss is removed: the "earlier" or the "later" one.
    """

    ties: Ties = "earlier"

    @override
    def search(self, problem: Problem, rng: np.random.Generator) -> SearchGenerator:
        costs = yield from layer_costs(problem, "ablation", keep=problem.n_remove)
        scores = yield Round([cheapest_mask(problem, costs, self.ties)])
        return scores.best(1)[0]
