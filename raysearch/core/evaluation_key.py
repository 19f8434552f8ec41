"""The key of an evaluation."""

from __future__ import annotations

from typing import NamedTuple

from raysearch.core.statistic import Subject


class Key(NamedTuple):
    """The key of an evaluation in the ledger. Nothing is computed twice for a key.

    Args:
        calibration: The fingerprint of the calibration.
        subject: A mask, or a statistic of the dense model.
        shard: The number of the shard, from 0.
    """

    calibration: str
    subject: Subject
    shard: int
