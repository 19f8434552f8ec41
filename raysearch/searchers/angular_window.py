"""Angular distance: remove the M consecutive layers that turn the hidden state least from their start to their end.

    l* = argmin_l d(l, M),    d(l, M) = arccos(cos(h_l, h_{l+M})) / pi,    S = {l, …, l + M - 1}

Source: Gromov et al. 2024 (The Unreasonable Ineffectiveness of the Deeper Layers, arXiv 2403.17887), equations 6 and 7.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from typing_extensions import override

from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.core.statistic import Statistic
from raysearch.errors import UserError
from raysearch.searchers.base import Remark, Round, Searcher, SearchGenerator
from raysearch.searchers.toolbox.subsets import runs


@dataclass(frozen=True)
class AngularWindowSearcher(Searcher):
    """Compares all windows of M layers: one pass of the dense model, and one evaluation of the best window.

    A window that contains a protected layer is not considered. The distance of every window is recorded.

    Args:
        tokens: The tokens whose hidden states are compared: "last" (the last token of each sample, as in the paper) or
            "all" (the mean over all tokens).
    """

    solves_additive = False
    uses_objective = False

    tokens: Literal["last", "all"] = "last"

    @override
    def search(self, problem: Problem, rng: np.random.Generator) -> SearchGenerator:
        windows = runs(problem, problem.free, problem.n_remove)
        if not windows:
            longest = max(length for length in range(1, problem.n_remove) if runs(problem, problem.free, length))
            protected = problem.sites.mask_of(Mask.of(*problem.protected)).parts
            raise UserError(
                f"remove={problem.size} finds no {problem.size} consecutive {problem.space.plural} between those of "
                f"protect={protected}; use remove={problem.group}..{longest * problem.group}, or protect fewer"
            )
        statistic = Statistic(f"angular_distance_{self.tokens}")
        rows = yield statistic
        distances = np.diagonal(rows.mean(axis=0), problem.n_remove)  # d(l, M) for l = 0 … N - M
        yield Remark(statistic.value, distances.tolist())
        scores = yield Round([min(windows, key=lambda window: distances[window.layers[0]])])
        return scores.best(1)[0]
