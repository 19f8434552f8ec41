"""Means over items with standard errors, and of masks beside the dense model on the same items."""

from __future__ import annotations

import math
from collections.abc import Sequence

from raysearch.core.estimate import Estimate


def mean(values: Sequence[float]) -> Estimate:
    """Return the mean over items with its standard error, which a single item has none of."""
    middle, n = math.fsum(values) / len(values), len(values)
    if n < 2:
        return Estimate(middle)
    return Estimate(middle, math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (n - 1) / n))


def parts(values: Sequence[float]) -> tuple[float, ...]:
    """Return what each item adds to the mean."""
    return tuple(value / len(values) for value in values)


def retention(values: Sequence[float], dense: Sequence[float]) -> Estimate | None:
    """Return what is left of the dense model's mean, None if that is 0; its error counts the items as pairs.

    Args:
        values: A number of each item.
        dense: The dense model's numbers of the same items.
    """
    of_dense = mean(dense).value
    if not of_dense:
        return None
    ratio = mean(values).value / of_dense
    # By the delta method: of (x - ratio y) / mean of y.
    error = mean([value - ratio * other for value, other in zip(values, dense, strict=True)]).error
    return Estimate(ratio, None if error is None else error / abs(of_dense))
