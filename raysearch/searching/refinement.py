"""The best masks of a search before and after a short recovery, for ``refine=recover``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raysearch.core.mask import Mask


@dataclass(frozen=True)
class RefinedMask:
    """The losses of a mask before and after a short recovery, on the calibration of the search.

    Args:
        mask: The mask.
        loss: The loss before the recovery.
        recovered_loss: The loss after it.
        steps: The steps of the training.
        tokens: The number of tokens that the model was trained on.
        seconds: The time of the recovery, in the process that did it.
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
        refinement_id: Its id; its files are next to the ledger, in ``recoveries/``.
        masks: The masks, lowest loss before the recovery first.
        rows: The number of rows for training and for held-out losses; none is in the calibration.
        left_out: The number of rows that were left out, by reason.
        rank_correlation: Spearman's rank correlation of the losses before and after; None if it is undefined, or for
            fewer than three masks.
    """

    refinement_id: str
    masks: tuple[RefinedMask, ...]
    rows: int
    left_out: Mapping[str, int]
    rank_correlation: float | None

    @property
    def best(self) -> RefinedMask:
        """The mask with the lowest loss after the recovery; of equal losses the first in mask order."""
        return min(self.masks, key=lambda refined: (refined.recovered_loss, refined.mask))
