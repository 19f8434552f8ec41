"""The keys and the values of evaluations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from raysearch.core.statistic import Subject

#: The values of an evaluation: for a mask the loss of each sample, before it is divided by its measure's count, float64
#: [B]; for a statistic its rows, flat, float64.
Values = npt.NDArray[np.float64]

#: Values by the fingerprint of their calibration, subject and shard.
RecordedValues = Mapping[str, Mapping[Subject, Mapping[int, Values]]]


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
