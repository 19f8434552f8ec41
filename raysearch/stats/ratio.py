"""The ratio estimator: the sum over samples divided by the sum of their weights, its variance and standard error.

A loss per token is such a ratio: the sum of the samples' losses divided by the number of their scored tokens.

Source: Cochran, Sampling Techniques, 1977, equation 6.13.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]
Weights = npt.NDArray[np.float64] | npt.NDArray[np.int64]


def ratio(values: Numbers, weights: Weights) -> Numbers:
    """Return the sum of the values divided by the sum of the weights.

    Args:
        values: The value of each sample, [..., S].
        weights: The weight of each sample, [S].

    Returns:
        The ratios, [...].
    """
    return np.asarray(values.sum(axis=-1) / weights.sum())


def residual_variance(values: Numbers, weights: Weights) -> Numbers:
    """Return the variance of the samples' residuals from their ratio; 0 for a single sample.

    Args:
        values: The value of each sample, [..., S].
        weights: The weight of each sample, [S].

    Returns:
        The variances, [...], with S - 1 as the divisor.
    """
    if values.shape[-1] < 2:
        return np.zeros(values.shape[:-1])
    residuals = values - ratio(values, weights)[..., None] * weights
    return np.asarray(residuals.var(axis=-1, ddof=1))


def standard_error(values: Numbers, weights: Weights) -> float:
    """Return the standard error of a ratio, without the correction for finite populations.

    Args:
        values: The value of each sample, float64, [S], at least two.
        weights: The weight of each sample, [S]: its scored tokens, or 1.

    Returns:
        The standard error, in the unit of the ratio.
    """
    return float(np.sqrt(len(values) * residual_variance(values, weights)) / weights.sum())


def contributions(values: Numbers, weights: Weights) -> Numbers:
    """Return the contribution of each sample to a ratio.

    The contributions add up to the ratio. S times their variance is the square of its `standard_error`. The same is
    true for the differences of two ratios' contributions with the same weights, since a ratio is linear in the values.

    Args:
        values: The value of each sample, float64, [S].
        weights: The weight of each sample, [S]: its scored tokens, or 1.

    Returns:
        The contributions, float64, [S].
    """
    whole = values.sum() / weights.sum()
    return np.asarray((values - weights * whole) / weights.sum() + whole / len(values))
