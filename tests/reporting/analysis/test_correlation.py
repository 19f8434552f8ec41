from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from raysearch.core.estimate import Estimate
from raysearch.reporting.analysis.correlation import correlations
from raysearch.reporting.analysis.frame import CALIBRATION_LOSS, averages, cells_frame
from raysearch.stats.rank import permutation_p
from tests.reporting.cells import ACCURACY, PERPLEXITY_METRIC, cell, outcome, study


def test_correlation_is_of_what_is_better():
    """Lower losses with higher accuracies: +1. A constant side has no correlation."""
    cells = [
        cell(f"s{i}", outcome(1.0 + i, removed=(i, 9), assessed={"acc": Estimate(90.0 - i), "ppl": Estimate(7.0)}))
        for i in range(5)
    ]
    results = study(*cells, metrics=(ACCURACY, PERPLEXITY_METRIC))
    frame = cells_frame(results)
    by_quantities = correlations(frame, [CALIBRATION_LOSS, *averages(results)])
    rhos = {(correlation.first.key, correlation.second.key): correlation.rho for correlation in by_quantities}
    assert rhos["loss", "accuracy_average"] == pytest.approx(1.0)
    assert rhos["loss", "perplexity_average"] is None


def test_identical_masks_are_one_point_and_baselines_none():
    names = {"a": (1, 2), "b": (1, 2), "c": (1, 3), "d": (1, 4), "e": (1, 5), "f": (1, 6), "baseline": (1, 7)}
    cells = [
        cell(name, outcome(1.0 + i, removed=mask, assessed={"acc": Estimate(90.0 - i)}), uses_objective=len(name) == 1)
        for i, (name, mask) in enumerate(names.items())
    ]
    results = study(*cells, metrics=(ACCURACY,))
    (correlation,) = correlations(cells_frame(results), [CALIBRATION_LOSS, *averages(results)])
    assert correlation.n == 5
    assert correlation.low is None, "five points have no interval"
    assert correlation.p == pytest.approx(2 / 120)


def test_searchers_with_a_mask_in_common_are_tested_by_permuting_masks():
    """Compare with all permutations of five masks: losses by searcher and draw, a perplexity by mask."""
    masks_by_searcher = {"a": (1, 4), "b": (1, 2), "c": (2, 5), "d": (3, 3)}
    losses = {"a": (0.6, 0.6), "b": (0.6, 0.7), "c": (1.2, 1.5), "d": (0.4, 0.6)}
    log_perplexities = (1.2, 1.9, 0.5, 0.9, 1.8)
    x = [np.mean(searcher_losses) for searcher_losses in losses.values()]

    def y(order):
        return [np.mean([order[mask - 1] for mask in masks]) for masks in masks_by_searcher.values()]

    rhos = [stats.spearmanr(x, y(order)).statistic for order in itertools.permutations(log_perplexities)]
    cells = [
        cell(
            name,
            outcome(
                losses[name][draw], removed=(0, mask), assessed={"ppl": Estimate(np.exp(log_perplexities[mask - 1]))}
            ),
            draw=str(draw),
        )
        for name, masks in masks_by_searcher.items()
        for draw, mask in enumerate(masks)
    ]
    results = study(*cells, metrics=(PERPLEXITY_METRIC,))
    (correlation,) = correlations(cells_frame(results), [CALIBRATION_LOSS, *averages(results)])
    assert correlation.n == 4
    assert correlation.rho == pytest.approx(rhos[0])
    expected = np.mean(np.abs(rhos) >= abs(rhos[0]) - 1e-9)
    assert correlation.p == pytest.approx(expected, abs=0.02)
    assert expected == pytest.approx(2 * permutation_p(np.array(x), np.array(y(log_perplexities))))
