"""Means over items with standard errors, and of masks beside the dense model on the same items."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np
import numpy.typing as npt

from raysearch.core.estimate import Estimate
from raysearch.evaluation.totals import standard_error


def mean(values: Sequence[float]) -> Estimate:
    """Return the mean over items with its standard error, which a single item has none of."""
    return Estimate(fmean(values), error_of_ratio(values, np.ones(len(values))))


def parts(values: Sequence[float]) -> tuple[float, ...]:
    """Return what each item adds to the mean."""
    return tuple(value / len(values) for value in values)


def retention(values: Sequence[float], dense: Sequence[float]) -> Estimate | None:
    """Return what is left of the dense model's mean over the same items; None if that is 0."""
    of_dense = fmean(dense)
    return Estimate(fmean(values) / of_dense, error_of_ratio(values, dense)) if of_dense else None


def error_of_ratio(values: Sequence[float], dense: npt.ArrayLike) -> float | None:
    """Return the standard error of the ratio of two means over the same items; None with less than two."""
    return abs(standard_error(np.asarray(values), np.asarray(dense))) if len(values) > 1 else None
