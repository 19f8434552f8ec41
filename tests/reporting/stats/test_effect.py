from __future__ import annotations

import pytest
from scipy import stats

from raysearch.reporting.stats.agreement import cross_agreements
from raysearch.reporting.stats.effect import calibration_effects
from raysearch.reporting.stats.frame import averages, cells_frame
from tests.reporting.cells import PERPLEXITY_METRIC, cell, grid, outcome, study


def test_calibrations_are_compared_searcher_by_searcher():
    frame = cells_frame(
        study(
            cell("a", outcome(removed=(0, 1)), "x"),
            cell("a", outcome(removed=(0, 1)), "y"),
            cell("b", outcome(removed=(2, 3)), "x"),
            cell("b", outcome(removed=(4, 5)), "y"),
            cell("only x", outcome(removed=(4, 5)), "x"),
        )
    )
    (found,) = cross_agreements(frame)
    assert (found.mean, found.lowest, found.highest, found.n_searchers) == (0.5, 0.0, 1.0, 2)


def test_calibration_effect_is_a_paired_interval():
    x, y = [60.0, 61.0, 64.0, 59.0], [57.0, 60.0, 61.0, 58.5]
    values = {("x", name): [value] for name, value in zip("abcd", x, strict=True)}
    values |= {("y", name): [value] for name, value in zip("abcd", y, strict=True)}
    results = grid(values)
    (found,) = calibration_effects(cells_frame(results), *averages(results))
    interval = stats.ttest_rel(x, y).confidence_interval(0.95)
    assert (found.best, found.second, found.n_searchers) == ("x", "y", 4)
    assert found.low == pytest.approx(interval.low)
    assert found.high == pytest.approx(interval.high)
    assert found.clear == (interval.low > 0)


def test_calibration_effect_on_perplexity_is_a_ratio_and_lower_wins():
    values = {("x", "a"): [40.0], ("x", "b"): [90.0], ("y", "a"): [10.0], ("y", "b"): [10.0]}
    results = grid(values, PERPLEXITY_METRIC)
    (found,) = calibration_effects(cells_frame(results), *averages(results))
    assert found.best == "y"
    assert found.gain == pytest.approx(6.0)
