"""Sums of a mask's samples in the ledger, and their standard errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from raysearch.calibration.calibration import Calibration
from raysearch.core.mask import Mask
from raysearch.ledger.ledger import Ledger


def total(shards: Mapping[int, npt.NDArray[np.float64]], n_shards: int) -> float:
    """Add samples and shards in their fixed order, so that the sum never depends on who computed what when."""
    summed = 0.0
    for shard in range(n_shards):
        for loss in shards[shard].tolist():
            summed += loss
    return summed


def standard_error(samples: npt.NDArray[np.float64], weights: npt.NDArray[np.int64]) -> float:
    """Return the standard error of a loss: the sum over samples, divided by the sum of their weights.

    Args:
        samples: The loss of each sample, float64, [S], at least two.
        weights: The weight of each, [S]: its scored tokens, or 1.

    Source: Cochran, Sampling Techniques, 1977, equation 6.13 (the ratio estimator), without the correction for finite
    populations.
    """
    residuals = samples - weights * (samples.sum() / weights.sum())
    return float(np.sqrt(len(samples) * residuals.var(ddof=1)) / weights.sum())


def contributions(samples: npt.NDArray[np.float64], weights: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return what each sample adds to a loss, the sum over samples divided by the sum of their weights.

    They add up to the loss, and S times their variance is its squared standard error, as `standard_error`; the same
    holds of the differences of two masks' contributions, since the loss of the ratio estimator is linear in samples.
    """
    loss = samples.sum() / weights.sum()
    return np.asarray((samples - weights * loss) / weights.sum() + loss / len(samples))


def sample_losses(
    calibration: Calibration, ledger: Ledger, masks: Sequence[Mask]
) -> tuple[dict[Mask, npt.NDArray[np.float64]], npt.NDArray[np.int64]]:
    """Return the losses of each mask's samples, and the samples' weights: scored tokens, or 1."""
    known = ledger.known(calibration.fingerprint, list(masks))
    losses = {mask: np.concatenate([of[shard] for shard in range(calibration.n_shards)]) for mask, of in known.items()}
    return losses, np.concatenate([calibration.weights(shard) for shard in range(calibration.n_shards)])


def standard_errors(
    calibration: Calibration, ledger: Ledger, masks: Sequence[Mask], against: Mask | None = None
) -> list[float | None]:
    """Return the standard errors of masks' losses, or of their differences from another mask's on the same samples.

    The ledger must know all of them. An error is None if the loss is a sum, or of one sample, or not finite.
    """
    losses, weights = sample_losses(calibration, ledger, [*masks, *([] if against is None else [against])])

    def error(mask: Mask) -> float | None:
        samples = losses[mask] if against is None else losses[mask] - losses[against]
        if calibration.measure.per == "set" or len(samples) < 2 or not np.isfinite(samples).all():
            return None
        return standard_error(samples, weights)

    return [error(mask) for mask in masks]


def known_totals(ledger: Ledger, calibration: str, n_shards: int) -> Iterator[tuple[Mask, float]]:
    """Yield every mask that the ledger knows on all shards of a calibration, with the sum of its samples' losses."""
    for mask, shards in ledger.masks(calibration):
        if len(shards) == n_shards:
            yield mask, total(shards, n_shards)
