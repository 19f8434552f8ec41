"""Sums of the sample losses of masks in the ledger, and their standard errors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from raysearch.calibration.calibration import Calibration
from raysearch.core.mask import Mask
from raysearch.ledger.ledger import Ledger
from raysearch.stats.ratio import standard_error


def total(losses_by_shard: Iterable[npt.NDArray[np.float64]]) -> float:
    """Return the sum of a mask's losses over all samples, added in a fixed order.

    So the last bits of the sum do not depend on which replica computed which shard, or when.

    Args:
        losses_by_shard: The losses of the samples of each shard, [B], in the order of the shards.
    """
    summed = 0.0
    for losses in losses_by_shard:
        for loss in losses.tolist():
            summed += loss
    return summed


def sample_losses(
    calibration: Calibration, ledger: Ledger, masks: Sequence[Mask]
) -> tuple[dict[Mask, npt.NDArray[np.float64]], npt.NDArray[np.int64]]:
    """Return the losses of the samples of each mask, float64, [S], and the weights of the samples, [S].

    Args:
        calibration: The calibration.
        ledger: The ledger, which must contain the masks on all shards.
        masks: The masks.

    Returns:
        The losses of each mask, and the weights, both ordered by shard.
    """
    all_shards = range(calibration.n_shards)
    values = ledger.evaluations(calibration.fingerprint, masks)
    losses = {mask: np.concatenate([values[mask][shard] for shard in all_shards]) for mask in masks}
    return losses, np.concatenate([calibration.weights(shard) for shard in all_shards])


def standard_errors(
    calibration: Calibration, ledger: Ledger, masks: Sequence[Mask], against: Mask | None = None
) -> list[float | None]:
    """Return the standard errors of masks' losses, or of their differences from the loss of another mask.

    Args:
        calibration: The calibration.
        ledger: The ledger, which must contain all masks on all shards.
        masks: The masks.
        against: The mask whose losses are subtracted, sample by sample; None to subtract nothing.

    Returns:
        The error of each mask; None if the loss is a sum, or comes from one sample, or is not finite.
    """
    all_masks = [*masks] if against is None else [*masks, against]
    losses, weights = sample_losses(calibration, ledger, all_masks)

    def error(mask: Mask) -> float | None:
        samples = losses[mask] if against is None else losses[mask] - losses[against]
        if calibration.measure.per == "set" or len(samples) < 2 or not np.isfinite(samples).all():
            return None
        return standard_error(samples, weights)

    return [error(mask) for mask in masks]


def known_totals(ledger: Ledger, calibration: str, n_shards: int) -> Iterator[tuple[Mask, float]]:
    """Yield every mask that the ledger contains on all shards of a calibration, with the sum of its losses.

    Args:
        ledger: The ledger.
        calibration: The fingerprint of the calibration.
        n_shards: The number of its shards.

    Yields:
        A mask, and the sum of its losses over all shards.
    """
    for mask, shards in ledger.masks(calibration):
        if len(shards) == n_shards:
            yield mask, total(shards[shard] for shard in range(n_shards))
