"""Compares the losses of two masks on the same samples, and estimates what their difference is on all samples.

The samples are a part of a finite population, the calibration. A loss is a ratio: the sum over samples divided by the
sum of their weights.

Source: Student's t of paired differences, Cochran, Sampling Techniques, 1977, equations 2.20 (finite population), 6.13
(ratio) and 12.51 (two phases).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy  # `scipy.special` takes 0.2 s to import, so it is imported on first use

Array = npt.NDArray[np.float64]

MIN_SAMPLES = 8  # fewer samples do not estimate the variance of a difference
_MIN_VARIANCES = 5  # fewer variances do not estimate a shared variance
_MAX_SHARED_DEGREES = 20.0  # the most degrees of freedom that a shared variance counts for


@dataclass(frozen=True)
class MaskDifference:
    """The estimated difference of two masks' losses: first minus second.

    Args:
        mean: The difference.
        error: Its standard error.
        degrees: The degrees of freedom of `error`, at least 1.
        exact_p: The `probability`, if losses are 0 or 1 and an exact test gives it; else None.
    """

    mean: float
    error: float
    degrees: int
    exact_p: float | None = None

    @property
    def estimates_variance(self) -> bool:
        """Whether there are enough samples, which differ, to estimate the variance of the difference."""
        return self.degrees >= MIN_SAMPLES - 1 and self.error > 0

    def probability(self, shared: SharedVariance) -> float:
        """Return the probability of this difference, or a larger one, if the first mask were not worse."""
        if self.exact_p is not None:
            return self.exact_p
        if not self.estimates_variance:
            return 1.0
        # All differences use the same samples, so the shared variance counts no more than this one.
        shared_degrees = min(shared.degrees, self.degrees)
        degrees = self.degrees + shared_degrees
        moderated = (shared_degrees * shared.variance + self.degrees * self.error**2) / degrees
        error = math.sqrt(max(self.error**2, moderated))
        return float(scipy.special.stdtr(degrees, -self.mean / error))


@dataclass(frozen=True)
class SharedVariance:
    """The variance that the differences of several masks from one mask share.

    Masks that are about equally good differ from the best mask with about the same variance. So a few samples of each
    mask, taken together, estimate this variance well.

    Args:
        variance: The shared variance.
        degrees: The degrees of freedom that it counts for; 0 if there is no estimate.

    Source: Smyth 2004, Linear models and empirical Bayes methods for assessing
    differential expression, section 6.2: the moments of the logarithms of sample variances.
    """

    variance: float = 0.0
    degrees: float = 0.0

    @classmethod
    def of(cls, differences: Sequence[MaskDifference]) -> SharedVariance:
        """Estimate the shared variance.

        Returns zero degrees of freedom if there are fewer than five usable differences, and few if they vary much.
        """
        usable = [
            difference for difference in differences if difference.exact_p is None and difference.estimates_variance
        ]
        if len(usable) < _MIN_VARIANCES:
            return cls()
        degrees = np.array([difference.degrees for difference in usable])
        logs = (
            2 * np.log([difference.error for difference in usable])
            - scipy.special.digamma(degrees / 2)
            + np.log(degrees / 2)
        )
        excess = float(logs.var(ddof=1) - scipy.special.zeta(2, degrees / 2).mean())
        shared_degrees = _MAX_SHARED_DEGREES
        if excess > 0:
            shared_degrees = min(shared_degrees, 2 * _inverse_trigamma(excess))
        half = shared_degrees / 2
        return cls(math.exp(logs.mean() + scipy.special.digamma(half) - math.log(half)), shared_degrees)


def _inverse_trigamma(value: float) -> float:
    """Solve trigamma(x) = zeta(2, x) = value, above 0, by Newton's method (Smyth 2004, appendix)."""
    x = 0.5 + 1 / value
    for _ in range(20):
        trigamma = float(scipy.special.zeta(2, x))
        x_before = x
        x -= trigamma * (1 - trigamma / value) / (2 * float(scipy.special.zeta(3, x)))
        if x == x_before:
            break
    return x


def weighted_ratio(values: Array, weights: Array) -> Array:
    """Return the sum of each row of values divided by the sum of the weights, [k].

    Args:
        values: The values of the samples, [k, n].
        weights: The weights of the samples, [n].
    """
    return np.asarray(values.sum(axis=1) / weights.sum())


def residual_variance(values: Array, weights: Array) -> Array:
    """Return the variance of the residuals of each row's `weighted_ratio`, [k]; 0 if n is 1.

    Args:
        values: The values of the samples, [k, n].
        weights: The weights of the samples, [n].
    """
    residuals = values - weighted_ratio(values, weights)[:, None] * weights
    n_samples = values.shape[1]
    return np.asarray(residuals.var(axis=1, ddof=1)) if n_samples > 1 else np.zeros(len(values))


def mcnemar(losses: Array) -> float:
    """Return the p-value of McNemar's exact test of differences of right and wrong answers, each -1, 0 or 1."""
    n_worse = int((losses > 0).sum())
    n_different = int(np.count_nonzero(losses))
    return float(scipy.special.bdtrc(n_worse - 1, n_different, 0.5)) if n_worse else 1.0
