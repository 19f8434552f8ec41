"""Beam search over masks, one removed layer at a time; width 1 is greedy search.

Source: greedy, Song et al. 2024 (SLEB, arXiv 2402.09025), algorithm 1; beam of width 5, Kim et al. 2026
(arXiv 2604.24938), section 4.2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from pydantic import PositiveInt
from typing_extensions import override

from raysearch.core.problem import Problem
from raysearch.searchers.base import Round, Searcher, SearchGenerator, Ties


@dataclass(frozen=True)
class BeamSearcher(Searcher):
    """Keeps the `width` best masks of each size and evaluates every one-layer extension of them.

    With F removable layers, greedy search (width 1) costs the sum over t < M of (F - t) evaluations. After the first
    step, width B costs at most B times that.

    Args:
        width: How many masks of each size are kept, at least 1.
        ties: Which of two masks of equal loss is better: that of "earlier" or of "later" layers. Accuracies on few
            items tie often.
    """

    nested = True

    width: PositiveInt = 5
    ties: Ties = "earlier"

    @property
    @override
    def open_ended(self) -> bool:
        return self.width > 1  # two masks of a beam may have extensions in common

    @override
    def search(self, problem: Problem, rng: np.random.Generator) -> SearchGenerator:
        beams = [problem.dense]
        for rounds_left in reversed(range(problem.n_remove)):
            keep = self.width if rounds_left else 1
            scores = yield Round(problem.children(beams), keep=keep, n_rounds=problem.n_remove, ties=self.ties)
            beams = scores.best(keep)
        return beams[0]
