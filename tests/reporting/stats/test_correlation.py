from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from raysearch.core.estimate import Estimate
from raysearch.reporting.stats.correlation import bootstrap_interval, correlations, permutation_p, spearman
from raysearch.reporting.stats.frame import CALIBRATION_LOSS, averages, cells_frame
from tests.reporting.cells import ACCURACY, PERPLEXITY_METRIC, cell, outcome, study


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
    x, y = np.array([1.0, 1, 1, 1, 2]), np.array([1.0, 2, 3, 4, 5])
    assert None not in bootstrap_interval(x, y)
    assert bootstrap_interval(np.ones(5), y) == (None, None)


def test_correlation_is_of_what_is_better():
    """Lower losses with higher accuracies: +1. A constant side has no correlation, and says so."""
    made = [
        cell(f"s{i}", outcome(1.0 + i, removed=(i, 9), assessed={"acc": Estimate(90.0 - i), "ppl": Estimate(7.0)}))
        for i in range(5)
    ]
    results = study(*made, metrics=(ACCURACY, PERPLEXITY_METRIC))
    frame = cells_frame(results)
    found = correlations(frame, [CALIBRATION_LOSS, *averages(results)])
    rhos = {(one.first.key, one.second.key): one.rho for one in found}
    assert rhos["loss", "accuracy_average"] == pytest.approx(1.0)
    assert rhos["loss", "perplexity_average"] is None


@pytest.mark.parametrize("n", [4, 6, 7])
def test_permutation_p_is_that_of_all_pairings(n):
    rng = np.random.default_rng(n)
    x, y = rng.integers(0, 4, size=n).astype(float), rng.normal(size=n)
    theirs = stats.permutation_test(
        (x,), lambda some: stats.spearmanr(some, y).statistic, permutation_type="pairings", n_resamples=np.inf
    )  # fmt: skip
    assert permutation_p(x, y) == pytest.approx(theirs.pvalue)


def test_many_points_are_resampled():
    x = np.arange(12.0)
    assert permutation_p(x, x) == pytest.approx(1e-4, rel=1.1)
    assert permutation_p(x, np.random.default_rng(0).normal(size=12)) > 0.05


def test_identical_masks_are_one_point_and_baselines_none():
    names = {"a": (1, 2), "b": (1, 2), "c": (1, 3), "d": (1, 4), "e": (1, 5), "f": (1, 6), "baseline": (1, 7)}
    made = [
        cell(name, outcome(1.0 + i, removed=mask, assessed={"acc": Estimate(90.0 - i)}), uses_objective=len(name) == 1)
        for i, (name, mask) in enumerate(names.items())
    ]
    results = study(*made, metrics=(ACCURACY,))
    (found,) = correlations(cells_frame(results), [CALIBRATION_LOSS, *averages(results)])
    assert found.n == 5
    assert found.low is None, "five points have no interval"
    assert found.p == pytest.approx(2 / 120)


def test_searchers_with_the_same_mask_in_some_draw_are_tested_by_permuting_masks():
    """Against all permutations of the masks of each draw, by brute force."""
    rows = [("a", "0", 1), ("b", "0", 1), ("c", "0", 2), ("d", "0", 3)]
    rows += [("a", "1", 1), ("b", "1", 2), ("c", "1", 2), ("d", "1", 3)]
    x = {("0", 1): 0.9, ("0", 2): 1.1, ("0", 3): 1.0, ("1", 1): 0.7, ("1", 2): 1.8, ("1", 3): 0.8}
    y = {("0", 1): 1.3, ("0", 2): 0.8, ("0", 3): 0.9, ("1", 1): 1.9, ("1", 2): 0.4, ("1", 3): 1.3}

    def means(numbers):
        return [np.mean([numbers[draw, mask] for name, draw, mask in rows if name == one]) for one in "abcd"]

    rhos = []
    for first, second in itertools.product(itertools.permutations((1, 2, 3)), repeat=2):
        new = {("0", old): ("0", of) for old, of in zip((1, 2, 3), first, strict=True)}
        new |= {("1", old): ("1", of) for old, of in zip((1, 2, 3), second, strict=True)}
        rhos.append(stats.spearmanr(means(x), means({key: y[other] for key, other in new.items()})).statistic)
    expected = np.mean(np.abs(rhos) >= abs(rhos[0]) - 1e-9)
    made = [
        cell(
            name,
            outcome(x[draw, mask], removed=(0, mask), assessed={"ppl": Estimate(np.exp(y[draw, mask]))}),
            draw=draw,
        )
        for name, draw, mask in rows
    ]
    results = study(*made, metrics=(PERPLEXITY_METRIC,))
    (found,) = correlations(cells_frame(results), [CALIBRATION_LOSS, *averages(results)])
    assert (found.n, found.rho) == (4, pytest.approx(rhos[0]))
    assert found.p == pytest.approx(expected, abs=0.02)
    assert expected == pytest.approx(2 * permutation_p(np.array(means(x)), np.array(means(y))))
