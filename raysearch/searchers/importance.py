"""Importance: remove the M layers of lowest score by a statistic of the dense model.

Source: Block Influence, Men et al. 2024 (ShortGPT, arXiv 2403.03853), equation 1, as its mean over samples and tokens;
magnitude and Taylor, Kim et al. 2024 (Shortened LLaMA, arXiv 2402.02834). Mag+ and Taylor+ in the literature protect
the first four layers and the last two: protect=[0,1,2,3,-2,-1].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from typing_extensions import override

from raysearch.core.problem import Problem
from raysearch.core.statistic import Statistic
from raysearch.searchers.base import Round, Searcher, SearchGenerator
from raysearch.searchers.toolbox.priors import layer_scores
from raysearch.searchers.toolbox.subsets import cheapest_mask

Criterion = Literal["block_influence", "magnitude_l1", "magnitude_l2", "taylor"]


@dataclass(frozen=True)
class ImportanceSearcher(Searcher):
    """Removes the M free layers of lowest score: it costs one evaluation and the statistic.

    The scores of all layers are recorded under the criterion's name.

    Args:
        criterion: The score of a layer: "block_influence" (how much it turns the hidden state), "magnitude_l1" or
            "magnitude_l2" (the size of its weights), or "taylor" (weights times gradients); see `Statistic`.
    """

    criterion: Criterion

    @property
    @override
    def uses_objective(self) -> bool:
        return Statistic(self.criterion).needs_gradients

    @override
    def search(self, problem: Problem, rng: np.random.Generator) -> SearchGenerator:
        importance = yield from layer_scores(Statistic(self.criterion))
        scores = yield Round([cheapest_mask(problem, importance[list(problem.free)])])
        return scores.best(1)[0]
