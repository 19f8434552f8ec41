"""The Gaussian process over masks: its likelihood, its predictions, and expected improvement far in the tail."""

import math

import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm

from raysearch.searchers.toolbox.hamming_gp import Hyperparameters, Posterior, fit, log_expected_improvement


def some_masks(count, seed=0, n=16, size=5):
    rng = np.random.default_rng(seed)
    rows = np.zeros((count, n))
    for row in rows:
        row[rng.permutation(n)[:size]] = 1
    return rows


def hamming(a, b):
    """The Hamming distance of each row of `a` to each row of `b`."""
    return np.abs(a[:, None] - b[None]).sum(axis=2)


def test_the_fit_finds_more_likely_hyperparameters_and_is_repeatable():
    rows = some_masks(60)
    distances = hamming(rows, rows)
    truth = Hyperparameters(1.0, 12.0, 0.1)
    covariance = truth.covariance(distances) + truth.noise**2 * np.eye(60)
    targets = np.linalg.cholesky(covariance) @ np.random.default_rng(1).normal(size=60)
    fitted = fit(distances, targets, Hyperparameters())

    def log_likelihood(hyper):
        return multivariate_normal.logpdf(
            targets, cov=hyper.covariance(distances) + (hyper.noise**2 + 1e-8) * np.eye(60)
        )

    assert log_likelihood(fitted) > log_likelihood(Hyperparameters()) - 1e-9
    assert log_likelihood(fitted) > log_likelihood(truth) - 1.0  # the weak prior moves the fit away from the maximum
    assert fit(distances, targets, Hyperparameters()) == fitted


def test_predictions_follow_the_textbook():
    seen = some_masks(20, 2)
    new = some_masks(7, 3)
    hyper = Hyperparameters(1.3, 5.0, 0.2)
    targets = np.random.default_rng(4).normal(size=20)
    mean, deviation = Posterior.of(hyper, hamming(seen, seen), targets).predict(hamming(new, seen))
    k = 1.3**2 * np.exp(-hamming(seen, seen) / 5) + 0.04 * np.eye(20)
    cross = 1.3**2 * np.exp(-hamming(new, seen) / 5)
    assert mean == pytest.approx(cross @ np.linalg.solve(k, targets), abs=1e-6)
    assert deviation**2 == pytest.approx(1.3**2 - np.diag(cross @ np.linalg.solve(k, cross.T)), abs=1e-6)


def test_expected_improvement_agrees_with_its_definition_and_does_not_underflow():
    mean = np.array([0.0, 1.0, -2.0, 3.0])
    deviation = np.array([1.0, 0.5, 0.1, 2.0])
    best = 0.3
    scaled = (best - mean) / deviation
    plain = deviation * (norm.pdf(scaled) + scaled * norm.cdf(scaled))
    assert log_expected_improvement(mean, deviation, best) == pytest.approx(np.log(plain), rel=1e-9)

    tail = log_expected_improvement(np.array([0.99, 1.01, 50, 9e3, 1.1e4, 1e6]), np.ones(6), 0.0)
    assert np.isfinite(tail).all()
    assert (np.diff(tail) < 0).all()
    # For u -> -inf, EI -> φ(u) / u².
    assert tail[2] == pytest.approx(-(50**2) / 2 - math.log(math.sqrt(2 * math.pi)) - 2 * math.log(50), rel=1e-5)
