"""Estimates with standard errors: means over items, ratios of two means over the same items, medians of repeats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

import numpy as np
import numpy.typing as npt

from raysearch.core.estimate import Estimate
from raysearch.stats.ratio import standard_error


def mean(values: Sequence[float]) -> Estimate:
    """Return the mean over items with its standard error, which is None for a single item."""
    return Estimate(fmean(values), error_of_ratio(values, np.ones(len(values))))


def parts_of_mean(values: Sequence[float]) -> tuple[float, ...]:
    """Return the contribution of each item to the mean."""
    return tuple(value / len(values) for value in values)


def retention(values: Sequence[float], dense: Sequence[float]) -> Estimate | None:
    """Return the ratio of a mask's mean to the dense model's, with its standard error.

    Args:
        values: The values of the mask, one per item.
        dense: The values of the dense model on the same items.

    Returns:
        The ratio; None if the dense model's mean is 0.
    """
    dense_mean = fmean(dense)
    return Estimate(fmean(values) / dense_mean, error_of_ratio(values, dense)) if dense_mean else None


def error_of_ratio(values: Sequence[float], dense: npt.ArrayLike) -> float | None:
    """Return the standard error of the ratio of two means over the same items.

    Args:
        values: The values of the numerator, one per item.
        dense: The values of the denominator on the same items.

    Returns:
        The standard error; None with fewer than two items.
    """
    return abs(standard_error(np.asarray(values), np.asarray(dense))) if len(values) > 1 else None


def error_of_median(repeats: Sequence[float]) -> float | None:
    """Return the standard error of the median of repeats from a normal distribution; None for fewer than two."""
    return math.sqrt(math.pi / 2) * stdev(repeats) / math.sqrt(len(repeats)) if len(repeats) > 1 else None
