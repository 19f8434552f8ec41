"""Reverse order: remove the deepest layers, whatever they do.

Source: the reverse-order baseline of Lu et al. 2024 (Reassessing Layer Pruning in LLMs, arXiv 2411.15558), which
fine-tuning turns into a strong one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.searchers.base import Round, SearchGenerator


@dataclass(frozen=True)
class ReverseOrderSearcher:
    """Removes the last M removable layers: one evaluation, to know what it costs."""

    solves_additive: ClassVar[bool] = False

    def search(self, problem: Problem, rng: np.random.Generator) -> SearchGenerator:
        """See `raysearch.searchers.base`."""
        scores = yield Round([Mask(problem.free[-problem.n_remove :])])
        return scores.best(1)[0]
