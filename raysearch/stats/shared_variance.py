"""Tests of many differences on few samples: the variance that the differences share makes each test surer.

Source: Smyth 2004, Linear models and empirical Bayes methods for assessing differential expression.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # `scipy.special` takes 0.2 s to import, so it is imported on first use

MIN_SAMPLES = 8  #: fewer samples do not estimate the variance of a difference
_MIN_VARIANCES = 5  # fewer variances do not estimate a shared variance
_MAX_DEGREES = 20.0  # the most degrees of freedom that a shared variance counts for


@dataclass(frozen=True)
class SampledDifference:
    """A difference of two means, estimated from a part of their samples.

    Args:
        mean: The difference.
        error: Its standard error.
        degrees: The degrees of freedom of `error`, at least 1.
        exact: The `probability`, if an exact test gives it; else None.
    """

    mean: float
    error: float
    degrees: int
    exact: float | None = None

    @property
    def is_usable(self) -> bool:
        """Whether `error` is known well enough for a test by Student's t."""
        return self.degrees >= MIN_SAMPLES - 1 and self.error > 0

    def probability(self, shared: SharedVariance) -> float:
        """Return the probability of this difference, or a larger one, if there were none, or one below 0."""
        if self.exact is not None:
            return self.exact
        if not self.is_usable:
            return 1.0
        # A shared variance has at most the degrees of freedom of one difference: all differences use the same samples.
        shared_degrees = min(shared.degrees, self.degrees)
        degrees = self.degrees + shared_degrees
        moderated = (shared_degrees * shared.variance + self.degrees * self.error**2) / degrees
        error = math.sqrt(max(self.error**2, moderated))
        return float(scipy.special.stdtr(degrees, -self.mean / error))


@dataclass(frozen=True)
class SharedVariance:
    """The variance that several differences from one mean share.

    Means that are about equal differ from the best of them with about the same variance. So a few samples of each,
    taken together, estimate this variance well.

    Args:
        variance: The shared variance.
        degrees: The degrees of freedom that it counts for; 0 if there is no estimate.
    """

    variance: float = 0.0
    degrees: float = 0.0

    @classmethod
    def of(cls, differences: Sequence[SampledDifference]) -> SharedVariance:
        """Estimate the shared variance by the moments of the logarithms of the variances (Smyth 2004, section 6.2).

        Returns zero degrees of freedom if there are fewer than five usable differences, and few if they vary much.
        """
        usable = [difference for difference in differences if difference.exact is None and difference.is_usable]
        if len(usable) < _MIN_VARIANCES:
            return cls()
        degrees = np.array([difference.degrees for difference in usable])
        logs = (
            2 * np.log([difference.error for difference in usable])
            - scipy.special.digamma(degrees / 2)
            + np.log(degrees / 2)
        )
        excess = float(logs.var(ddof=1) - scipy.special.zeta(2, degrees / 2).mean())
        shared_degrees = min(_MAX_DEGREES, 2 * inverse_trigamma(excess)) if excess > 0 else _MAX_DEGREES
        log_variance = logs.mean() + scipy.special.digamma(shared_degrees / 2) - math.log(shared_degrees / 2)
        return cls(math.exp(log_variance), shared_degrees)


def inverse_trigamma(value: float) -> float:
    """Solve trigamma(x) = value, above 0, by Newton's method (Smyth 2004, appendix); scipy has no such function."""
    x = 0.5 + 1 / value
    for _ in range(20):
        trigamma = float(scipy.special.zeta(2, x))
        x_before = x
        x -= trigamma * (1 - trigamma / value) / (2 * float(scipy.special.zeta(3, x)))
        if x == x_before:
            break
    return x
