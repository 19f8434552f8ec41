"""The result of a refined search: its best masks before and after the same short recovery."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raysearch.core.mask import Mask


@dataclass(frozen=True)
class RefinedMask:
    """A mask before and after a short recovery; losses are of the search's own calibration.

    Args:
        recovered_loss: That of the same model after the recovery.
        steps: Steps of the training that were taken.
        tokens: Tokens that the model was trained on.
        seconds: Of the recovery, in the process that did it.
    """

    mask: Mask
    loss: float
    recovered_loss: float
    steps: int
    tokens: int
    seconds: float


@dataclass(frozen=True)
class Refinement:
    """The best masks of a search before and after the same short recovery.

    Args:
        refinement_id: Its name; what is kept of it lies beside the ledger, in ``recoveries/``.
        masks: The lowest loss before first.
        rows: Rows that each was trained and followed on, none of them of the calibration.
        left_out: Rows that were left out, by the reason.
        rank_correlation: Spearman's, of the losses before and after; None for fewer than three masks, and where it is
            undefined.
    """

    refinement_id: str
    masks: tuple[RefinedMask, ...]
    rows: int
    left_out: Mapping[str, int]
    rank_correlation: float | None

    @property
    def best(self) -> RefinedMask:
        """The mask of the lowest loss after the recovery; of ties the first."""
        return min(self.masks, key=lambda one: (one.recovered_loss, one.mask))
