"""Exhaustive search: every legal mask of M layers, for small problems and for judging the other searchers.

Source: Kim et al. 2026 (arXiv 2604.24938), equation 1, solved by enumeration.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice

import numpy as np
from pydantic import PositiveInt
from typing_extensions import override

from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.errors import EvaluationError, UserError
from raysearch.searchers.base import Round, Searcher, SearchGenerator


@dataclass(frozen=True)
class ExhaustiveSearcher(Searcher):
    """Scores all C(F, M) masks of M among F removable layers, or all masks of M pairs that do not overlap.

    Masks come in lexicographic order, so that the masks of a round share many leading layers. The first mask is a
    separate round, which soon shows how long the search will take.

    Args:
        round_size: Masks per round, at least 1.
        limit: The maximum number of masks to score, at least 1. The search refuses a problem with more masks.
    """

    round_size: PositiveInt = 512
    limit: PositiveInt = 50_000

    @override
    def count(self, problem: Problem) -> int:
        return problem.n_solutions

    @override
    def search(self, problem: Problem, rng: np.random.Generator) -> SearchGenerator:
        if problem.n_solutions > self.limit:
            number = str(problem.n_solutions)
            if not problem.has_overlaps:
                number = f"C({len(problem.free)},{problem.n_remove}) = {number}"
            raise UserError(
                f"searcher.limit={self.limit} is below the {number} masks there are; give "
                f"searcher.limit={problem.n_solutions} to score them all"
            )
        best: Mask | None = None
        best_loss = math.inf
        cause = ""
        masks = problem.solutions()
        size = 1
        n_rounds = max(1, math.ceil((problem.n_solutions - 1) / self.round_size))  # rounds, without the first mask's
        while batch := tuple(islice(masks, size)):
            scores = yield Round(batch, keep=1, beat=best, n_rounds=n_rounds)
            for mask, loss in scores.losses.items():  # in mask order, so that the earlier of two equal masks stays
                if loss < best_loss:
                    best = mask
                    best_loss = loss
            cause = next(iter(scores.failed.values()), cause)
            size = self.round_size
        if best is None:
            raise EvaluationError(f"none of the {problem.n_solutions} masks could be evaluated: {cause}")
        return best
