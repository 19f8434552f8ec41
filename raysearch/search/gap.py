"""Where a found mask ranks among all masks of its size, once the ledger knows them all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pydantic import SerializerFunctionWrapHandler, model_serializer

from raysearch.calibration.objectives.weighted import WeightedObjective
from raysearch.core.mask import Mask
from raysearch.core.problem import AUTO, Problem, sizes_of
from raysearch.errors import UserError
from raysearch.evaluation.totals import known_totals
from raysearch.ledger.ledger import Ledger
from raysearch.search.record import SearchRecord
from raysearch.search.trial import Trial
from raysearch.searchers.exhaustive import ExhaustiveSearcher


@dataclass(frozen=True)
class Gap:
    """A search's mask among all legal masks of its size, of which failed ones lose most.

    Args:
        loss: In the unit of the search's measure.
        n_masks: How many legal masks of its size there are.
        n_known: Those that the ledger knows; what follows is None unless it knows them all.
        rank: 1 plus the number of masks that lose less.
        percentile: Share of the masks that lose as much or more, in percent: 100 for the best.
        best: The best mask; ties in mask order.
    """

    mask: Mask
    loss: float
    n_masks: int
    n_known: int
    rank: int | None = None
    percentile: float | None = None
    best: Mask | None = None
    best_loss: float | None = None

    @property
    def gap(self) -> float | None:
        """The loss of the mask over that of the best one."""
        return None if self.best_loss is None else self.loss - self.best_loss

    @property
    def remedy(self) -> str:
        """How to get the masks that are not known."""
        limit = f" searcher.limit={self.n_masks}" if self.n_masks > ExhaustiveSearcher.limit else ""
        command = f"raysearch search searcher=exhaustive remove={len(self.mask)}{limit} screening=off"
        return f"{command} and the same model, data, objective, protect and seed"

    @model_serializer(mode="wrap")
    def _write(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = write(self)
        return {"n_removed": len(self.mask), "removed": fields.pop("mask"), **fields, "gap": self.gap}


def gaps_of(record: SearchRecord, ledger: Ledger) -> list[Gap]:
    """Rank the best mask of each number of layers that a search scored; neither model nor text is needed.

    Args:
        record: The search's record.
        ledger: Where it is recorded.

    Raises:
        UserError: The search has not finished, its losses are weighted ones, or of no number of layers that it was
            asked for all masks are known.
    """
    result, best_by_size = record.found, record.found.best_by_size
    if result.measure.unit == WeightedObjective.measure.unit:
        raise UserError(
            f"SEARCH={record.search_id} cannot be ranked: the ledger holds the parts of its weighted losses, not the "
            "losses themselves; rank a search on one objective"
        )
    calibration = result.fingerprints["calibration"]
    divisor = result.measure.divisor(result.n_tokens, result.n_samples)
    free = set(Problem.create(result.n_layers, len(result.removed), record.config["protect"]).free)
    n_shards = len(ledger.known(calibration, [result.mask]).get(result.mask, ()))
    known: dict[int, list[tuple[float, Mask]]] = {size: [] for size in best_by_size}
    for mask, summed in known_totals(ledger, calibration, n_shards):
        if len(mask) in known and free.issuperset(mask):
            known[len(mask)].append((summed / divisor if math.isfinite(summed) else math.inf, mask))
    gaps = [_gap(trial, math.comb(len(free), size), known[size]) for size, trial in best_by_size.items()]
    remove = record.config["remove"]
    asked = gaps if remove == AUTO else [gap for gap in gaps if len(gap.mask) in sizes_of(remove)]
    if all(gap.rank is None for gap in asked):
        least = asked[0]
        raise UserError(
            f"SEARCH={record.search_id} cannot be ranked: {least.n_known:,} of the {least.n_masks:,} masks of "
            f"{len(least.mask)} layers are known; get the others with {least.remedy}"
        )
    return gaps


def _gap(trial: Trial, n_masks: int, known: list[tuple[float, Mask]]) -> Gap:
    assert trial.loss is not None, "best masks have one"
    if len(known) < n_masks:
        return Gap(trial.mask, trial.loss, n_masks, len(known))
    rank = 1 + sum(loss < trial.loss for loss, _ in known)
    best_loss, best = min(known)
    return Gap(trial.mask, trial.loss, n_masks, n_masks, rank, 100 * (1 - (rank - 1) / n_masks), best, best_loss)
