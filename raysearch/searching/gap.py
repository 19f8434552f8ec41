"""Where a found mask ranks among all masks of its size, once the ledger knows them all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pydantic import SerializerFunctionWrapHandler, model_serializer

from raysearch.calibration.objectives.weighted import WeightedObjective
from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.errors import UserError
from raysearch.evaluation.totals import known_totals
from raysearch.ledger.ledger import Ledger
from raysearch.searchers.exhaustive import ExhaustiveSearcher
from raysearch.searching.record import SearchRecord


@dataclass(frozen=True)
class Gap:
    """A search's mask among all legal masks of its size, of which failed ones lose most.

    Args:
        loss: In the unit of the search's measure.
        n_masks: How many legal masks of its size there are.
        rank: 1 plus the number of masks that lose less.
        percentile: Share of the masks that lose as much or more, in percent: 100 for the best.
        best: The best mask; ties in mask order.
    """

    mask: Mask
    loss: float
    n_masks: int
    rank: int
    percentile: float
    best: Mask
    best_loss: float

    @property
    def gap(self) -> float:
        """The loss of the mask over that of the best one."""
        return self.loss - self.best_loss

    @model_serializer(mode="wrap")
    def _write(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = write(self)
        return {"n_removed": len(self.mask), "removed": fields.pop("mask"), **fields, "gap": self.gap}


def gap_of(record: SearchRecord, ledger: Ledger) -> Gap:
    """Rank the mask that a search found, by its ledger alone.

    Raises:
        UserError: The search has not finished, its losses are weighted ones, or not all masks of as many layers are
            known.
    """
    result = record.found
    if result.measure.unit == WeightedObjective.measure.unit:
        raise UserError(
            f"SEARCH={record.search_id} cannot be ranked: the ledger holds the parts of its weighted losses, not the "
            "losses themselves; rank a search on one objective"
        )
    calibration, mask, size = result.fingerprints["calibration"], result.mask, len(result.removed)
    divisor = result.measure.divisor(result.n_tokens, result.n_samples)
    problem = Problem.create(result.n_layers, size, record.config["protect"])
    n_shards, n_masks = len(ledger.known(calibration, [mask]).get(mask, ())), problem.n_solutions
    known = [
        (summed / divisor if math.isfinite(summed) else math.inf, other)
        for other, summed in known_totals(ledger, calibration, n_shards)
        if problem.is_solution(other)
    ]
    if len(known) < n_masks:
        limit = f" searcher.limit={n_masks}" if n_masks > ExhaustiveSearcher.limit else ""
        raise UserError(
            f"SEARCH={record.search_id} cannot be ranked: {len(known):,} of the {n_masks:,} masks of {size} layers are "
            f"known; get the others with raysearch search searcher=exhaustive remove={size}{limit} screening=off and "
            "the same model, data, objective, protect and seed"
        )
    rank = 1 + sum(loss < result.loss for loss, _ in known)
    best_loss, best = min(known)
    return Gap(mask, result.loss, n_masks, rank, 100 * (1 - (rank - 1) / n_masks), best, best_loss)
