"""The level and power of all tests, and the correction of p values for their number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

LEVEL = 0.05
POWER = 0.8


def holm(p: Sequence[float | None]) -> list[float | None]:
    """Return p values corrected for their number by Holm's method; an unknown p stays None and is not counted.

    The result is that of ``statsmodels.stats.multitest.multipletests``, which runs the garbage collector in each call:
    a third of a second.
    """
    ascending = np.sort([p_value for p_value in p if p_value is not None])
    steps = np.maximum.accumulate(ascending * np.arange(len(ascending), 0, -1))
    corrected = dict(zip(ascending.tolist(), np.minimum(steps, 1.0).tolist(), strict=True))
    return [None if p_value is None else corrected[p_value] for p_value in p]
