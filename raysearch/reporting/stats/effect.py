"""Which calibration gives the better checkpoints, searcher by searcher."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from raysearch.reporting.stats.comparison import summarise
from raysearch.reporting.stats.frame import Quantity, settings


@dataclass(frozen=True)
class CalibrationEffect:
    """The calibration with the best mean over searchers, beside the next one.

    Args:
        model: Of which model.
        remove: M.
        quantity: By what.
        best: The calibration with the best mean over the searchers that have a result by every calibration.
        second: The next one.
        gain: How much better, at least 0: the mean difference over searchers; the mean ratio, at least 1, of a
            quantity that is compared by ratios.
        low: Lower end of Student's 95 % interval of the gain, its searchers taken for a sample; None with one searcher.
        high: Its upper end.
        n_searchers: How many searchers are compared.
    """

    model: str
    remove: int
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


def calibration_effects(frame: pd.DataFrame, quantities: Sequence[Quantity]) -> list[CalibrationEffect]:
    """The best calibration by each quantity, for each model and M that was searched by at least two."""
    found = []
    for quantity in quantities:
        panels: dict[tuple[str, int], dict[str, dict[str, float]]] = {}
        for setting, cells in settings(frame):
            means = {one.searcher: one.mean for one in summarise(cells, quantity)}
            if means:
                panels.setdefault((setting.model, setting.remove), {})[setting.calibration] = means
        for (model, remove), by_calibration in panels.items():
            effect = _effect(model, remove, quantity, by_calibration)
            if effect is not None:
                found.append(effect)
    return found


def _effect(
    model: str, remove: int, quantity: Quantity, means: dict[str, dict[str, float]]
) -> CalibrationEffect | None:
    common = [name for name in next(iter(means.values())) if all(name in of for of in means.values())]
    if len(means) < 2 or not common:
        return None
    scale = math.log if quantity.ratio else float
    scores = {label: [quantity.sign * scale(of[name]) for name in common] for label, of in means.items()}
    best, second = sorted(scores, key=lambda label: -math.fsum(scores[label]))[:2]
    gains = [a - b for a, b in zip(scores[best], scores[second], strict=True)]
    gain, half = _mean_and_half_width(gains)
    ends = (None, None) if half is None else (gain - half, gain + half)
    read = math.exp if quantity.ratio else float
    low, high = (None if end is None else read(end) for end in ends)
    return CalibrationEffect(model, remove, quantity, best, second, read(gain), low, high, len(common))


def _mean_and_half_width(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean, and half of Student's 95 % interval; None with one value."""
    from scipy.stats import t

    n, mean = len(values), math.fsum(values) / len(values)
    if n < 2:
        return mean, None
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    return mean, float(t.ppf(0.975, n - 1)) * spread / math.sqrt(n)
