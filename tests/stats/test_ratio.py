import numpy as np
import pytest

from raysearch.stats.ratio import standard_error


def test_with_equal_weights_it_is_the_standard_error_of_the_mean():
    samples = np.array([1.0, 4.0, 2.0, 5.0])
    assert standard_error(samples, np.ones(4, np.int64)) == pytest.approx(samples.std(ddof=1) / 2)


def test_with_the_same_loss_per_token_in_each_sample_it_is_zero():
    weights = np.array([3, 10, 4])
    assert standard_error(0.7 * weights, weights) == pytest.approx(0, abs=1e-12)


def test_it_is_the_spread_over_bootstrap_samples():
    rng = np.random.default_rng(0)
    weights = rng.integers(1, 20, size=200)
    samples = rng.normal(2.0, 0.5, size=200) * weights + rng.normal(0, 3, size=200)
    drawn = rng.integers(200, size=(4000, 200))
    resampled = samples[drawn].sum(1) / weights[drawn].sum(1)
    assert standard_error(samples, weights) == pytest.approx(resampled.std(), rel=0.05)
