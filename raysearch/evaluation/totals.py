"""From a mask's samples in the ledger to the one number that it is judged by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby

import numpy as np
import numpy.typing as npt

from raysearch.evaluation.ledger import Ledger
from raysearch.mask import Mask


def total(shards: Mapping[int, npt.NDArray[np.float64]], n_shards: int) -> float:
    """Adds samples and shards in their fixed order, so that the sum never depends on who computed what when."""
    nats = 0.0
    for shard in range(n_shards):
        for loss in shards[shard].tolist():
            nats += loss
    return nats


def standard_error(samples: npt.NDArray[np.float64], weights: npt.NDArray[np.int64]) -> float:
    """How far the loss of other samples like these may lie from theirs, by chance alone.

    Args:
        samples: What each sample loses, float64, [S], at least two.
        weights: What each counts for in the loss, the sum over samples divided by the sum of these, [S]; their scored
            tokens, or 1.

    Returns:
        The standard error of that ratio, in its unit. Source: Cochran, Sampling
        Techniques, 1977, equation 6.13 (the ratio estimator), without the correction for finite populations.
    """
    residuals = samples - weights * (samples.sum() / weights.sum())
    return float(np.sqrt(len(samples) * residuals.var(ddof=1)) / weights.sum())


def known_totals(ledger: Ledger, calibration: str, n_shards: int) -> Iterator[tuple[Mask, float]]:
    """Every mask that the ledger knows on all shards of a calibration, with its nats; read as it is iterated over."""
    rows = ledger.connection.execute(
        "SELECT subject, shard, samples FROM evaluations WHERE calibration = ? AND subject GLOB '{*' ORDER BY subject",
        (calibration,),
    )
    for subject, group in groupby(rows, key=lambda row: row[0]):
        shards = {shard: np.frombuffer(samples, dtype="<f8") for _, shard, samples in group}
        if len(shards) == n_shards:
            yield Mask.parse(subject), total(shards, n_shards)
