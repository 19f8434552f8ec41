from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from raysearch.core.estimate import Estimate
from raysearch.reporting.analysis.agreement import cross_agreements
from raysearch.reporting.analysis.effect import CalibrationEffect, calibration_effects
from raysearch.reporting.analysis.frame import averages, cells_frame
from raysearch.studies.result import StudyResult
from tests.reporting.cells import ACCURACY, PERPLEXITY_METRIC, cell, grid, outcome, study


def effect(results: StudyResult) -> CalibrationEffect:
    (only_effect,) = calibration_effects(cells_frame(results), *averages(results))
    return only_effect


def test_calibrations_are_compared_searcher_by_searcher():
    masks = {("a", "x"): (0, 1), ("a", "y"): (0, 1), ("b", "x"): (2, 3), ("b", "y"): (4, 5), ("only x", "x"): (4, 5)}
    cells = (cell(searcher, outcome(removed=mask), calibration) for (searcher, calibration), mask in masks.items())
    (agreement,) = cross_agreements(cells_frame(study(*cells)))
    assert (agreement.mean, agreement.lowest, agreement.highest, agreement.n_searchers) == (0.5, 0.0, 1.0, 2)


def test_calibration_effect_is_a_paired_interval():
    x = [60.0, 61.0, 64.5, 59.0]
    y = [57.0, 60.0, 61.0, 58.5]
    values = {("x", name): [value] for name, value in zip("abcd", x, strict=True)}
    values |= {("y", name): [value] for name, value in zip("abcd", y, strict=True)}
    result = effect(grid(values))
    interval = stats.ttest_rel(x, y).confidence_interval(0.95)
    assert (result.best, result.second, result.n_searchers) == ("x", "y", 4)
    assert result.low == pytest.approx(interval.low)
    assert result.high == pytest.approx(interval.high)
    assert result.p == pytest.approx(stats.wilcoxon(np.subtract(x, y)).pvalue)
    assert result.clear is False, "four searchers are too few for a rank test to reject"


def test_calibration_effect_on_perplexity_is_a_ratio_and_lower_wins():
    values = {("x", "a"): [40.0], ("x", "b"): [90.0], ("y", "a"): [10.0], ("y", "b"): [10.0]}
    result = effect(grid(values, PERPLEXITY_METRIC))
    assert result.best == "y"
    assert result.gain == pytest.approx(6.0)


def test_every_two_calibrations_are_compared_and_corrected_for():
    rng = np.random.default_rng(2)
    means = {"x": 60.0, "y": 50.0, "z": 50.0}
    values = {(c, s): [mean + rng.normal()] for c, mean in means.items() for s in "abcdefgh"}
    results = grid(values)
    effects = {
        (pair_effect.best, pair_effect.second): pair_effect
        for pair_effect in calibration_effects(cells_frame(results), *averages(results))
    }
    clear_pairs = {pair for pair, pair_effect in effects.items() if pair_effect.clear}
    assert len(effects) == 3
    assert clear_pairs == {("x", "y"), ("x", "z")}
    assert effects["x", "y"].p == pytest.approx(3 * 2 / 2**8), "the least that signed ranks of 8 give, times 3"


def test_with_several_draws_calibrations_are_compared_over_draws():
    rng = np.random.default_rng(2)
    of_draws = {calibration: rng.normal(size=3) for calibration in "xy"}
    values = {(c, s): list(of_draws[c] + 0.01 * rng.normal(size=3)) for c in "xy" for s in "abcdefgh"}
    result = effect(grid(values, axis="draw"))
    sides = [np.mean([values[c, s] for s in "abcdefgh"], axis=0) for c in (result.best, result.second)]
    assert result.p == pytest.approx(stats.ttest_ind(*sides, equal_var=False).pvalue)
    assert result.n_draws == 3


def test_draws_that_agree_by_chance_do_not_differ_significantly_within_the_noise_of_items():
    cells = []
    for calibration, n_right in (("x", 50), ("y", 52)):
        right = np.roll(np.arange(100) < n_right, n_right)
        for searcher, draw in itertools.product("ab", "012"):
            items = right.astype(float)
            items[99] = calibration == "x" and draw == "0"  # the draws differ by one item
            assessed = {"acc": Estimate(items.sum(), 5.0)}
            cells.append(
                cell(searcher, outcome(assessed=assessed, items={"acc": tuple(items)}), calibration, draw=draw)
            )
    results = study(*cells, metrics=(ACCURACY,))
    frame = cells_frame(results)
    result = effect(results)
    items = frame["items"].map(lambda contributions: contributions["assessed.acc"][0])
    sides = [np.mean([*items[frame["calibration"] == calibration]], 0) for calibration in "xy"]
    assert result.p is not None
    assert result.p >= stats.ttest_rel(*sides).pvalue > 0.05
    assert result.low is not None
    assert result.low < 0
    without = frame.assign(items=[{}] * len(frame), accuracy_average_error=0.0)
    assert [pair_effect.clear for pair_effect in calibration_effects(without, *averages(results))] == [True], (
        "by draws alone"
    )


def test_the_noise_of_items_is_that_of_the_gain_however_many_seeds_a_searcher_has():
    rng = np.random.default_rng(1)
    right = {(calibration, "a"): rng.random(100) < share for calibration, share in (("x", 0.60), ("y", 0.46))}
    right |= dict.fromkeys(itertools.product("xy", "r"), rng.random(100) < 0.5)

    def p_with(n_seeds: int) -> float | None:
        cells = []
        for (calibration, searcher), answers in right.items():
            for draw, seed in itertools.product("012", range(n_seeds if searcher == "r" else 1)):
                items = answers + 0.05 * (np.arange(100) == int(draw)) * (calibration == "x")
                assessed = {"acc": Estimate(items.sum(), 5.0)}
                assessed_outcome = outcome(assessed=assessed, items={"acc": tuple(items)})
                cells.append(
                    cell(searcher, assessed_outcome, calibration, seed=seed, draw=draw, stochastic=searcher == "r")
                )
        return effect(study(*cells, metrics=(ACCURACY,))).p

    one_seed = p_with(1)
    assert one_seed is not None
    assert one_seed > 0.05
    assert p_with(9) == pytest.approx(one_seed)


def test_searchers_with_the_same_masks_are_one_in_the_rank_test():
    cells = [
        cell(searcher, outcome(removed=(0, i + 1), assessed={"acc": Estimate(value)}), calibration)
        for searcher, i in zip("abcdef", (0, 1, 2, 3, 3, 3), strict=True)  # d, e and f found the same
        for calibration, value in (("x", 60.0 + i), ("y", 50.0))
    ]
    result = effect(study(*cells, metrics=(ACCURACY,)))
    assert result.n_searchers == 6
    assert result.p == pytest.approx(2 / 2**4)
