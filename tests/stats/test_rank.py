from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from raysearch.stats.rank import bootstrap_interval, permutation_p, spearman


def test_spearman_is_scipys_ties_included():
    rng = np.random.default_rng(3)
    for _ in range(50):
        x, y = rng.integers(0, 4, size=(2, 7)).astype(float)
        if np.ptp(x) and np.ptp(y):
            assert float(spearman(x, y)) == pytest.approx(stats.spearmanr(x, y).statistic)


def test_spearman_sees_ties_through_the_dust_of_additions():
    x = np.array([0.1 + 0.2, 0.3, 0.5])
    assert float(spearman(x, np.array([1.0, 2.0, 3.0]))) == pytest.approx(stats.spearmanr([1, 1, 2], [1, 2, 3])[0])


def test_bootstrap_interval_is_that_of_scipy():
    rng = np.random.default_rng(0)
    x = rng.normal(size=20)
    y = x + rng.normal(size=20)
    low, high = bootstrap_interval(x, y)
    theirs = stats.bootstrap(
        (x, y), lambda a, b, axis: spearman(a, b), paired=True, vectorized=True, method="percentile",
        n_resamples=9999, rng=np.random.default_rng(1),
    ).confidence_interval  # fmt: skip
    assert low == pytest.approx(theirs.low, abs=0.03)
    assert high == pytest.approx(theirs.high, abs=0.03)


def test_bootstrap_leaves_out_resamples_without_a_correlation():
    x = np.array([1.0, 1, 1, 1, 2])
    y = np.array([1.0, 2, 3, 4, 5])
    assert None not in bootstrap_interval(x, y)
    assert bootstrap_interval(np.ones(5), y) == (None, None)


@pytest.mark.parametrize("n", [4, 6, 7])
def test_permutation_p_is_that_of_all_pairings(n):
    rng = np.random.default_rng(n)
    x = rng.integers(0, 4, size=n).astype(float)
    y = rng.normal(size=n)
    theirs = stats.permutation_test(
        (x,), lambda permuted: stats.spearmanr(permuted, y).statistic, permutation_type="pairings", n_resamples=np.inf
    )  # fmt: skip
    assert permutation_p(x, y) == pytest.approx(theirs.pvalue)


def test_many_points_are_resampled():
    x = np.arange(12.0)
    assert permutation_p(x, x) == pytest.approx(1e-4, rel=1.1)
    assert permutation_p(x, np.random.default_rng(0).normal(size=12)) > 0.05
