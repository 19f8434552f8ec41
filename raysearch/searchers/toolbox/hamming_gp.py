"""A Gaussian process over masks, whose covariance falls exponentially with the Hamming distance of two masks.

    k(S, T) = amplitude² exp(-|S △ T| / length),   y = f + noise

The kernel is a product of one factor for each layer, hence positive definite. The posterior is exact, by Cholesky
decomposition (Rasmussen and Williams 2006, algorithm 2.1). The three hyperparameters maximise the marginal likelihood
(equation 5.8, with the gradient 5.9). This is not a searcher: `bayesian` uses it as its surrogate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, lapack
from scipy.optimize import minimize
from scipy.special import erfcx, ndtr

Array = NDArray[np.float64]

_JITTER = 1e-8
#: Bounds of log amplitude, log length, log noise. Targets are standardised, so the amplitude is near 1.
_BOUNDS = ((math.log(0.05), math.log(20.0)), (math.log(0.5), math.log(500.0)), (math.log(1e-3), math.log(2.0)))
#: A weak normal prior on the logarithms (mean, standard deviation) stabilises the fit for few points.
_PRIOR = np.array([(0.0, 1.0), (math.log(8.0), 1.5), (math.log(0.05), 1.5)])


@dataclass(frozen=True)
class Hyperparameters:
    """The kernel's hyperparameters, in units of the standardised target; the length in layers."""

    amplitude: float = 1.0
    length: float = 8.0
    noise: float = 0.05

    def covariance(self, distances: Array) -> Array:
        """Return the covariance of function values at these Hamming distances, without noise."""
        return self.amplitude**2 * np.exp(-distances / self.length)


def fit(distances: Array, targets: Array, start: Hyperparameters) -> Hyperparameters:
    """Maximise the log marginal likelihood, plus a weak prior, by L-BFGS. The result is deterministic.

    Args:
        distances: The Hamming distances between the masks [n, n].
        targets: The standardised targets of the masks, with mean about 0 [n].
        start: The hyperparameters from which the optimisation starts.

    Returns:
        The hyperparameters at the maximum that the optimiser reached.
    """
    identity = np.eye(len(targets))

    def cost(logs: Array) -> tuple[float, Array]:
        amplitude, length, noise = np.exp(logs)
        shape = np.exp(-distances / length)
        signal = amplitude**2 * shape
        factor = np.linalg.cholesky(signal + (noise**2 + _JITTER) * identity)
        inverse, _ = lapack.dpotri(factor, lower=1)
        inverse = np.tril(inverse) + np.tril(inverse, -1).T
        weights = inverse @ targets
        slope = inverse - np.outer(weights, weights)  # the gradient is half its trace with dK (equation 5.9)
        gradient = 0.5 * np.array(
            [
                2 * np.vdot(slope, signal),
                np.vdot(slope, signal * distances) / length,
                2 * noise**2 * np.trace(slope),
            ]
        )
        deviations = (logs - _PRIOR[:, 0]) / _PRIOR[:, 1]  # from the prior's mean, in its standard deviations
        value = 0.5 * targets @ weights + np.log(np.diag(factor)).sum() + 0.5 * deviations @ deviations
        return float(value), gradient + deviations / _PRIOR[:, 1]

    logs = np.log([start.amplitude, start.length, start.noise])
    optimum = minimize(cost, logs, jac=True, method="L-BFGS-B", bounds=_BOUNDS, options={"maxiter": 30})
    return Hyperparameters(*(float(value) for value in np.exp(optimum.x)))


@dataclass(frozen=True, eq=False)
class Posterior:
    """The process conditioned on the targets of known masks."""

    hyper: Hyperparameters
    weights: Array  #: K⁻¹ y [n]
    inverse: Array  #: K⁻¹ [n, n]

    @classmethod
    def of(cls, hyper: Hyperparameters, distances: Array, targets: Array) -> Posterior:
        """Condition the process on known masks.

        Args:
            hyper: The kernel's hyperparameters.
            distances: The Hamming distances between the known masks [n, n].
            targets: The targets of the known masks [n].

        Returns:
            The posterior, which predicts other masks.
        """
        identity = np.eye(len(targets))
        factor = np.linalg.cholesky(hyper.covariance(distances) + (hyper.noise**2 + _JITTER) * identity)
        inverse = cho_solve((factor, True), identity)
        return cls(hyper, inverse @ targets, inverse)

    def predict(self, distances: Array) -> tuple[Array, Array]:
        """Return mean and standard deviation [m] at masks with these Hamming distances [m, n] to the known masks."""
        cross = self.hyper.covariance(distances)
        variance = self.hyper.amplitude**2 - np.einsum("mn,mn->m", cross @ self.inverse, cross)
        return cross @ self.weights, np.sqrt(np.maximum(variance, 1e-12))


def log_expected_improvement(mean: Array, deviation: Array, best: float) -> Array:
    """Return log E[max(best - f, 0)] for f ~ N(mean, deviation²), even if the expectation underflows.

    Args:
        mean: The predicted means [m].
        deviation: The predicted standard deviations, above 0 [m].
        best: The lowest known target.

    Returns:
        The logarithm of each improvement [m].

    Source: Ament et al. 2023 (arXiv 2310.20708), section 4; in the far tail it uses the first term of the expansion of
    erfcx.
    """
    scaled = (best - mean) / deviation
    near = np.maximum(scaled, -1.0)
    far = np.minimum(scaled, -1.0)
    density = np.exp(-0.5 * near**2) / math.sqrt(2 * math.pi)
    with np.errstate(divide="ignore", invalid="ignore"):
        tail = np.log1p(far * math.sqrt(math.pi / 2) * erfcx(-far / math.sqrt(2)))
    tail = np.where(far > -1e4, tail, -2 * np.log(-far))
    far_value = -0.5 * far**2 - 0.5 * math.log(2 * math.pi) + tail
    return np.log(deviation) + np.where(scaled > -1, np.log(density + near * ndtr(near)), far_value)
