"""A measured number with its standard error, its metric, and the rank correlation of two lists of numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import stdev
from typing import Literal

from raysearch.core.json import Number
from raysearch.text.numbers import with_error

Group = Literal["perplexity", "accuracy", "generation", "degeneration", "failures", "probe", "speed"]


@dataclass(frozen=True)
class Estimate:
    """A number and its standard error, if known, in the same unit."""

    value: Number
    error: float | None = None


def estimate_text(estimate: Estimate | None) -> str:
    """Format a number and its standard error, if known, both to the error's second digit; empty for None."""
    return "" if estimate is None else with_error(estimate.value, estimate.error)


@dataclass(frozen=True)
class Metric:
    """A metric of an assessment."""

    name: str  #: the key: ``hellaswag``
    title: str  #: the name in tables: ``HellaSwag``
    group: Group  #: perplexities, accuracies and generation are averaged by group
    unit: str  #: ``perplexity``, ``%``, ``nats``, ``tokens/s``, ``bytes``, ``× dense`` …
    higher_is_better: bool

    @property
    def heading(self) -> str:
        """The title, the unit, and which direction is better: ``HellaSwag (%, higher is better)``."""
        direction = "higher" if self.higher_is_better else "lower"
        return f"{self.title} ({self.unit}, {direction} is better)"


def error_of_median(repeats: Sequence[float]) -> float | None:
    """Return the standard error of the median of repeats from a normal distribution; None for fewer than two."""
    return math.sqrt(math.pi / 2) * stdev(repeats) / math.sqrt(len(repeats)) if len(repeats) > 1 else None


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation.

    Args:
        first: A number of each item.
        second: Another number of each item, in the same order.

    Returns:
        The correlation, -1 … 1; None for fewer than three items, or if all numbers of a list are equal.
    """
    is_constant = len({*first}) == 1 or len({*second}) == 1
    if len(first) < 3 or is_constant:
        return None
    from scipy.stats import spearmanr

    return float(spearmanr(first, second).statistic)
