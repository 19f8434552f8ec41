"""Ranks the mask of a search among all masks of its size, if the ledger contains all of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pydantic import SerializerFunctionWrapHandler, model_serializer

from raysearch.calibration.objectives.weighted import WeightedObjective
from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.core.space import LAYERS, Space
from raysearch.errors import UserError
from raysearch.evaluation.totals import known_totals
from raysearch.ledger.ledger import Ledger
from raysearch.searchers.exhaustive import ExhaustiveSearcher
from raysearch.searching.search_record import SearchRecord


@dataclass(frozen=True)
class Gap:
    """The rank of a search's mask among all legal masks of its size; a failed mask counts as the worst.

    Args:
        mask: The mask of the search.
        loss: Its loss, in the unit of the search's measure.
        n_masks: The number of legal masks of its size.
        rank: 1 plus the number of masks with a lower loss.
        percentile: The share of the masks with an equal or higher loss, in percent: 100 for the best.
        best: The best mask; of equal losses the first in mask order.
        best_loss: The loss of the best mask.
        space: What the masks remove.
    """

    mask: Mask
    loss: float
    n_masks: int
    rank: int
    percentile: float
    best: Mask
    best_loss: float
    space: Space = LAYERS

    @property
    def n_removed(self) -> int:
        """The size of the mask, as ``remove=`` counts it."""
        return self.space.size_of(self.mask)

    @property
    def gap(self) -> float:
        """The loss of the mask minus that of the best mask."""
        return self.loss - self.best_loss

    @model_serializer(mode="wrap")
    def _write(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = write(self)
        del fields["space"]
        return {"n_removed": self.n_removed, "removed": fields.pop("mask"), **fields, "gap": self.gap}


def gap_of(record: SearchRecord, ledger: Ledger) -> Gap:
    """Rank the mask of a search by the evaluations in a ledger.

    Args:
        record: The search.
        ledger: Its ledger.

    Returns:
        The rank and the percentile of the mask, and the best mask.

    Raises:
        UserError: The search has not finished, its losses are weighted, or the ledger does not contain all masks of the
            size.
    """
    result = record.finished_result
    if result.measure.unit == WeightedObjective.measure.unit:
        raise UserError(
            f"SEARCH={record.search_id} cannot be ranked: the ledger holds the parts of its weighted losses, not the "
            "losses themselves; rank a search on one objective"
        )
    calibration = result.fingerprints["calibration"]
    mask = result.mask
    size = result.n_removed
    divisor = result.measure.divisor(result.samples.n_tokens, result.samples.n_samples)
    limits = None if result.target is None else result.target.limits
    problem = Problem.of_model(result.sites, size, record.settings.protect, limits=limits, space=result.space)
    n_shards = len(ledger.evaluations(calibration, [mask]).get(mask, ()))
    n_masks = problem.n_solutions
    rivals = [
        (summed / divisor if math.isfinite(summed) else math.inf, rival)
        for rival, summed in known_totals(ledger, calibration, n_shards)
        if problem.is_solved_by(rival)
    ]
    if len(rivals) < n_masks:
        options = "" if result.space is LAYERS else f" space={result.space.name}"
        options += f" repair={result.settings.repair}" if result.settings.is_repaired else ""
        options += "" if result.target is None else f" {result.target.override}"
        options += f" searcher.limit={n_masks}" if n_masks > ExhaustiveSearcher.limit else ""
        raise UserError(
            f"SEARCH={record.search_id} cannot be ranked: {len(rivals):,} of the {n_masks:,} masks of {size} "
            f"{result.space.plural} are known; get the others with raysearch search searcher=exhaustive "
            f"remove={size}{options} screening=off and the same model, data, objective, protect and seed"
        )
    rank = 1 + sum(loss < result.loss for loss, _ in rivals)
    best_loss, best = min(rivals)
    return Gap(mask, result.loss, n_masks, rank, 100 * (1 - (rank - 1) / n_masks), best, best_loss, result.space)
