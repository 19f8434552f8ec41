"""Fast-Block-Select: start from the cheapest single layers, and exchange runs of equal length while the loss falls.

Source: a reconstruction of Zhang et al. 2026 (MI-PRUN, arXiv 2601.07212), section 3 and algorithm 1, from a reading
note alone. The start, the exchange of runs ranked by the sum of single-layer scores, and ConflictFreeSelect are from
that paper. The calibration loss in place of mutual information, and the history that provides the best mask, are from
Kim et al. 2026 (arXiv 2604.24938), section 4.2. Block Influence in place of mutual information at the start, and the
order in which conflicts are resolved (the better exchange first), are ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import PositiveInt
from typing_extensions import override

from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.searchers.base import Round, Scores, Searcher, SearchGenerator
from raysearch.searchers.toolbox.priors import layer_costs
from raysearch.searchers.toolbox.subsets import cheapest_mask, runs


@dataclass(frozen=True)
class FastBlockSelectSearcher(Searcher):
    """Evaluates the k most promising exchanges and makes all that lower the loss together, round after round.

    It costs at most 1 + rounds x (k + 1) evaluations. The ablation prior costs F more for F removable layers.
    Exchanges that lower the loss alone may raise it together. The search still continues from their combination, but
    returns the best mask that it has scored.

    Args:
        k: Exchanges scored in a round, at least 1.
        rounds: The maximum number of rounds, at least 1. The search ends earlier when no exchange lowers the loss or a
            mask repeats.
        prior: The cost of a layer alone: "influence" (Block Influence, from one dense pass) or "ablation" (single-layer
            losses).
    """

    open_ended = True

    k: PositiveInt = 5
    rounds: PositiveInt = 4
    prior: Literal["influence", "ablation"] = "influence"

    @override
    def search(self, problem: Problem, rng: np.random.Generator) -> SearchGenerator:
        costs = yield from layer_costs(problem, self.prior)
        centre = cheapest_mask(problem, costs)
        scores: Scores = yield Round([centre], n_rounds=self.rounds)
        tried = {centre}
        centres: set[Mask] = set()

        def loss(mask: Mask) -> float:
            return scores.losses.get(mask, np.inf)  # where the mask failed, or was dropped

        for _ in range(self.rounds):
            centres.add(centre)
            candidates = [mask for mask in exchanges(problem, centre, costs) if mask not in tried][: self.k]
            if not candidates:
                break
            tried.update(candidates)
            scores |= yield Round(candidates, beat=centre, n_rounds=self.rounds)
            improving = sorted(
                (mask for mask in candidates if loss(mask) < loss(centre)), key=lambda mask: (loss(mask), mask)
            )
            if not improving:
                break
            centre = conflict_free(problem, centre, improving)
            if centre not in scores.outcomes or centre in scores.dropped:
                tried.add(centre)
                scores |= yield Round([centre], n_rounds=self.rounds)
            if loss(centre) == np.inf:
                centre = improving[0]
            if centre in centres:
                break
        return scores.best(1)[0]


def exchanges(problem: Problem, centre: Mask, costs: NDArray[np.float64]) -> list[Mask]:
    """Return every mask that exchanges a run of removed layers for a run of kept layers of equal length.

    Args:
        problem: The space of legal masks.
        centre: The mask whose layers are exchanged.
        costs: The cost of each layer of ``problem.free`` [F]; an unknown cost (NaN) counts as infinite.

    Returns:
        The masks by the sum of their layers' costs, cheapest first.
    """
    cost = dict(zip(problem.free, np.where(np.isnan(costs), np.inf, costs).tolist(), strict=True))
    kept_layers = [layer for layer in problem.free if layer not in centre]
    masks = (
        centre - removed_run | kept_run
        for length in range(1, len(centre) + 1)
        for removed_run in runs(problem, centre, length)
        for kept_run in runs(problem, kept_layers, length)
    )
    return sorted(filter(problem.is_legal, masks), key=lambda mask: (sum(cost[layer] for layer in mask), mask))


def conflict_free(problem: Problem, centre: Mask, improving: Iterable[Mask]) -> Mask:
    """Return `centre` after all exchanges that do not conflict.

    Args:
        problem: The space of legal masks.
        centre: The mask whose layers are exchanged.
        improving: The masks after one exchange each, best first. An exchange is left out if an earlier one has
            already exchanged one of its layers, or if pairs of the two overlap.

    Returns:
        A mask of the same size as `centre`.
    """
    exchanged = Mask()
    for mask in improving:
        change = centre ^ mask
        if not exchanged & change and problem.is_legal(centre ^ (exchanged | change)):
            exchanged |= change
    return centre ^ exchanged
