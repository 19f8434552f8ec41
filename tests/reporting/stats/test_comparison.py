from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from tests.reporting.cells import cell, compared, outcome


def test_searchers_tie_within_two_standard_errors_and_not_beyond():
    noise = 2 * math.hypot(0.03, 0.04)
    for gap, tied in ((noise - 1e-6, True), (noise + 1e-6, False)):
        found = compared(cell("a", outcome(1.0, delta_error=0.03)), cell("b", outcome(1.0 + gap, delta_error=0.04)))
        assert [rival.tied for rival in found.rivals] == [True, tied]
        assert found.rivals[1].noise == pytest.approx(noise)
        assert found.verdict == ("all tie" if tied else "one is best")


def test_error_of_the_difference_on_the_same_samples_comes_first():
    found = compared(
        cell("a", outcome(1.0, delta_error=0.5), error_to_best=0.0),
        cell("b", outcome(1.1, delta_error=0.5), error_to_best=0.04),
    )
    assert found.rivals[1].noise == pytest.approx(0.08)
    assert found.verdict == "one is best"


def test_spread_over_seeds_is_welchs():
    a, b = [1.0, 1.2, 1.4], [1.3, 1.5, 1.55, 1.7]
    cells = [cell("a", outcome(x), seed=i) for i, x in enumerate(a)]
    cells += [cell("b", outcome(x), seed=i) for i, x in enumerate(b)]
    found = compared(*cells)
    test = stats.ttest_ind(b, a, equal_var=False)
    interval = test.confidence_interval(0.95)
    assert found.rivals[1].behind == pytest.approx(np.mean(b) - np.mean(a))
    assert found.rivals[1].noise == pytest.approx((interval.high - interval.low) / 2)
    assert found.rivals[1].tied == (test.pvalue > 0.05)
    assert found.best.spread == pytest.approx(np.std(a, ddof=1))


def test_without_errors_or_seeds_only_equal_losses_tie():
    found = compared(cell("a", outcome(1.0)), cell("b", outcome(1.0)), cell("c", outcome(1.1)))
    assert [rival.tied for rival in found.rivals] == [True, True, None]
    assert found.verdict == "cannot tell"


def test_cheapest_of_those_that_tie():
    found = compared(
        cell("dear", outcome(1.0, delta_error=0.1, layer_forwards_alone=900.0)),
        cell("cheap", outcome(1.1, delta_error=0.1, layer_forwards_alone=100.0)),
        cell("free, far off", outcome(9.0, delta_error=0.1, layer_forwards_alone=1.0)),
    )
    assert found.best.searcher == "dear"
    assert found.cheapest is not None
    assert found.cheapest.searcher == "cheap"
    assert found.verdict == "some tie"


def test_negative_and_zero_losses_compare_as_any():
    found = compared(cell("a", outcome(0.0, delta_error=0.01)), cell("b", outcome(-2.0, delta_error=0.01)))
    assert [rival.searcher for rival in found.rivals] == ["b", "a"]
    assert found.rivals[1].behind == pytest.approx(2.0)


def test_masks_of_the_wrong_size_are_not_compared():
    found = compared(cell("a", outcome(1.0)), cell("b", outcome(0.1, removed=(3,))))
    assert [rival.searcher for rival in found.rivals] == ["a"]
