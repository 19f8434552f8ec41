"""Means over items with standard errors, and of masks beside the dense model on the same items."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

import numpy as np

from raysearch.core.estimate import Estimate


def mean(values: Sequence[float]) -> Estimate:
    """Return the mean over items with its standard error, which a single item has none of."""
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else None
    return Estimate(fmean(values), error)


def parts(values: Sequence[float]) -> tuple[float, ...]:
    """Return what each item adds to the mean."""
    return tuple(value / len(values) for value in values)


def retention(values: Sequence[float], dense: Sequence[float]) -> Estimate | None:
    """Return what is left of the dense model's mean over the same items; None if that is 0."""
    of_dense = fmean(dense)
    return Estimate(fmean(values) / of_dense, error_of_ratio(values, dense)) if of_dense else None


def error_of_ratio(values: Sequence[float], dense: Sequence[float]) -> float | None:
    """Return the standard error of the ratio of two means over the same items; None with less than two.

    Source: Cochran, Sampling Techniques, 1977, equation 6.13, as for losses in `raysearch.evaluation.totals`.
    """
    ratio = fmean(values) / fmean(dense)
    error = mean([value - ratio * other for value, other in zip(values, dense, strict=True)]).error
    return None if error is None else error / abs(fmean(dense))
