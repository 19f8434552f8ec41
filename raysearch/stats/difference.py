"""The difference of two means: its errors by several kinds of noise, its p, its interval, and what would be detected.

Degrees of freedom are by Welch and Satterthwaite. That formula trusts a spread over few draws or seeds, which may be
small by chance, as much as the spread over many items. So a difference may have several errors, of which the most
cautious one counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from raysearch.stats.significance import LEVEL, POWER

NORMAL = 1e9  #: degrees of freedom with which Student's t is the normal distribution


class Variance(NamedTuple):
    """The variance of a number, and its degrees of freedom."""

    value: float
    freedom: float


class StandardError(NamedTuple):
    """The standard error of a number, and its degrees of freedom."""

    value: float
    freedom: float


def variance_of_mean(values: npt.NDArray[np.float64]) -> Variance:
    """Return the variance of the mean of two or more numbers."""
    return Variance(float(values.var(ddof=1)) / len(values), len(values) - 1.0)


def joint_error(variances: Sequence[Variance]) -> StandardError:
    """Return the root of a sum of variances, with its degrees of freedom by Welch and Satterthwaite."""
    whole = sum(variance.value for variance in variances)
    spread = sum(variance.value**2 / variance.freedom for variance in variances)
    return StandardError(math.sqrt(whole), whole**2 / spread if spread > 0 else NORMAL)


@dataclass(frozen=True)
class Difference:
    """The difference of two means.

    Args:
        value: The mean difference; of logarithms where the quantity is compared by ratios.
        n_draws: The number of draws by which it is paired.
        errors: Its standard errors: by all noise, and by draws or seeds alone where there are several. The most
            cautious one counts. Empty if the noise is not known.
        exact_p: The p of the exact McNemar test, where two masks answered the same items right or wrong; else None.
    """

    value: float
    n_draws: int
    errors: Sequence[StandardError] = ()
    exact_p: float | None = None

    @property
    def p(self) -> float | None:
        """The two-sided p of the test that there is no difference; None if the error is not known."""
        if self.value == 0:
            return 1.0
        if self.exact_p is not None or not self._usable_errors:
            return self.exact_p
        from scipy.special import stdtr

        return max(float(2 * stdtr(error.freedom, -abs(self.value) / error.value)) for error in self._usable_errors)

    def half_width(self) -> float | None:
        """Return half of the width of the confidence interval of 1 - `LEVEL`; None if the error is not known."""
        return self._quantiles(1 - LEVEL / 2)

    @property
    def detectable(self) -> float | None:
        """The difference that would be detected four times in five; None if the error is not known."""
        return self._quantiles(1 - LEVEL / 2, POWER)

    def equivalence_p(self, margin: float | None) -> float | None:
        """Return the larger p of two one-sided tests that the difference is within a margin.

        Two sides that are the same in all draws may differ in other draws, so an error of 0 is not used.

        Args:
            margin: The difference below which two sides are as good as each other; None for no margin.

        Returns:
            The p; None without a margin, or without an error above 0.

        Source: Schuirmann 1987, J. Pharmacokinet. Biopharm. 15(6).
        """
        if margin is None:
            return None
        from scipy.special import stdtr

        room = margin - abs(self.value)
        errors = [error for error in self.errors if error.value > 0]
        return max((float(stdtr(error.freedom, -room / error.value)) for error in errors), default=None)

    def _quantiles(self, *levels: float) -> float | None:
        """Return the sum of quantiles of Student's t, times the error; None if the error is not known."""
        from scipy.special import stdtrit

        sizes = [float(stdtrit(error.freedom, levels).sum() * error.value) for error in self._usable_errors]
        return max(sizes, default=None)

    @property
    def _usable_errors(self) -> list[StandardError]:
        """The errors to test by. An error of 0 next to a difference that is not 0 is no evidence of no noise."""
        return [error for error in self.errors if error.value > 0 or not self.value]
