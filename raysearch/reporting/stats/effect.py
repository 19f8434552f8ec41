"""Which calibration gives the better checkpoints, searcher by searcher."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import pandas as pd

from raysearch.reporting.stats.frame import Panel, Quantity, crossed


@dataclass(frozen=True)
class CalibrationEffect:
    """The calibration with the best mean over searchers, beside the next one.

    Args:
        panel: Of which model and M.
        quantity: By what.
        best: The calibration with the best mean over the searchers that have a result by every calibration.
        second: The next one.
        gain: How much better, at least 0: the mean difference over searchers; the mean ratio, at least 1, of a
            quantity that is compared by ratios.
        low: Lower end of Student's 95 % interval of the gain, its searchers taken for a sample; None with one searcher.
        high: Its upper end.
        n_searchers: How many searchers are compared.
    """

    panel: Panel
    quantity: Quantity
    best: str
    second: str
    gain: float
    low: float | None
    high: float | None
    n_searchers: int

    @property
    def clear(self) -> bool | None:
        """Whether the interval leaves out that there is no difference; None if there is no interval."""
        return None if self.low is None else self.low > (1.0 if self.quantity.ratio else 0.0)


def calibration_effects(frame: pd.DataFrame, quantity: Quantity) -> list[CalibrationEffect]:
    """The best calibration by a quantity, for each model and M that was searched by at least two."""
    found = []
    for panel, means in crossed(frame, quantity):
        common = means.dropna()
        if common.shape[1] > 1 and len(common):
            found.append(_effect(panel, quantity, common))
    return found


def _effect(panel: Panel, quantity: Quantity, means: pd.DataFrame) -> CalibrationEffect:
    scores = quantity.sign * (np.log(means) if quantity.ratio else means)
    best, second = scores.sum().sort_values(ascending=False, kind="stable").index[:2]
    gains = scores[best] - scores[second]
    gain, half = fmean(gains), _half_width(gains)
    read = math.exp if quantity.ratio else float
    low, high = (None, None) if half is None else (read(gain - half), read(gain + half))
    return CalibrationEffect(panel, quantity, best, second, read(gain), low, high, len(means))


def _half_width(values: Sequence[float]) -> float | None:
    """Half of Student's 95 % interval of a mean; None with one value."""
    from scipy.stats import sem, t

    return float(t.ppf(0.975, len(values) - 1) * sem(values)) if len(values) > 1 else None
