"""Where a found mask ranks among all masks of its size, once the ledger knows them all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from raysearch.calibration.objectives.weighted import WeightedObjective
from raysearch.core.mask import Mask
from raysearch.core.measure import Measure
from raysearch.core.problem import Problem, sizes_of
from raysearch.errors import UserError
from raysearch.evaluation.totals import known_totals
from raysearch.ledger.ledger import Ledger
from raysearch.ledger.searches import SearchRecord
from raysearch.search.found import found_by_size
from raysearch.searchers.exhaustive import ExhaustiveSearcher


@dataclass(frozen=True)
class Gap:
    """A search's mask among all legal masks of its size, of which failed ones lose most.

    Args:
        mask: The mask.
        loss: In the unit of the search's measure.
        n_masks: How many legal masks of its size there are.
        n_known: Those that the ledger knows; what follows is None unless it knows them all.
        rank: 1 plus the number of masks that lose less.
        percentile: Share of the masks that lose as much or more, in percent: 100 for the best.
        best: The best mask; ties in mask order.
        best_loss: What it loses.
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
        """What the mask loses more than the best one."""
        return None if self.best_loss is None else self.loss - self.best_loss

    @property
    def remedy(self) -> str:
        """How to get the masks that are not known."""
        limit = f" searcher.limit={self.n_masks}" if self.n_masks > ExhaustiveSearcher.limit else ""
        command = f"raysearch search searcher=exhaustive remove={len(self.mask)}{limit}"
        return f"{command} and the same model, data, objective, protect and seed"

    def as_json(self) -> dict[str, Any]:
        """The object that ``--json`` prints."""
        return {
            "n_removed": len(self.mask),
            "removed": list(self.mask),
            "loss": self.loss,
            "n_masks": self.n_masks,
            "n_known": self.n_known,
            "rank": self.rank,
            "percentile": self.percentile,
            "best": None if self.best is None else list(self.best),
            "best_loss": self.best_loss,
            "gap": self.gap,
        }


def gaps_of(run: SearchRecord, ledger: Ledger) -> list[Gap]:
    """Ranks the best mask of each number of layers that a search scored; neither model nor text is needed.

    Args:
        run: The search's record.
        ledger: Where it is recorded.

    Raises:
        UserError: The search has not finished, its losses are weighted ones, or of no number of layers that it was
            asked for all masks are known.
    """
    found = found_by_size(run)
    masks = {size: Mask(tuple(entry["removed"])) for size, entry in found.items()}
    most = max(found)
    result, calibration = found[most], found[most]["fingerprints"]["calibration"]
    measure = Measure(**result["measure"])
    if measure.unit == WeightedObjective.measure.unit:
        raise UserError(
            f"SEARCH={run.search_id} cannot be ranked: the ledger holds the parts of its weighted losses, not "
            f"the losses "
            "themselves; rank a search on one objective"
        )
    divisor = measure.divisor(result["n_tokens"], result["n_samples"])
    free = set(Problem.create(result["n_layers"], most, run.config["protect"]).free)
    n_shards = len(ledger.known(calibration, [masks[most]]).get(masks[most], ()))
    losses: dict[int, list[float]] = {size: [] for size in found}
    best = {size: (math.inf, mask) for size, mask in masks.items()}
    for mask, summed in known_totals(ledger, calibration, n_shards):
        if len(mask) in found and free.issuperset(mask):
            loss = summed / divisor if math.isfinite(summed) else math.inf
            losses[len(mask)].append(loss)
            best[len(mask)] = min(best[len(mask)], (loss, mask))
    gaps = [
        _gap(mask, found[size]["loss"], math.comb(len(free), size), losses[size], best[size])
        for size, mask in masks.items()
    ]
    asked = [gap for gap in gaps if len(gap.mask) in sizes_of(run.config["remove"])]
    if all(gap.rank is None for gap in asked):
        least = asked[0]
        raise UserError(
            f"SEARCH={run.search_id} cannot be ranked: {least.n_known:,} of the {least.n_masks:,} masks of "
            f"{len(least.mask)} layers are known; get the others with {least.remedy}"
        )
    return gaps


def _gap(mask: Mask, loss: float, n_masks: int, known: list[float], best: tuple[float, Mask]) -> Gap:
    if len(known) < n_masks:
        return Gap(mask, loss, n_masks, len(known))
    better = sum(other < loss for other in known)
    return Gap(mask, loss, n_masks, n_masks, 1 + better, 100 * (1 - better / n_masks), best[1], best[0])
