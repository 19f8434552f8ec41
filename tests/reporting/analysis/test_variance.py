from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from raysearch.reporting.analysis.frame import averages, cells_frame
from raysearch.reporting.analysis.variance import Split, largest_changes, splits
from raysearch.studies.result import StudyResult
from tests.reporting.cells import PERPLEXITY_METRIC, grid


def split(results: StudyResult) -> Split:
    (only_split,) = splits(cells_frame(results), averages(results))
    return only_split


def test_split_without_seeds_by_hand():
    values = {("x", "a"): [1.0], ("x", "b"): [3.0], ("y", "a"): [5.0], ("y", "b"): [9.0]}
    result = split(grid(values))
    # mean 4.5; calibrations 2 and 7: 4 · 2.5² = 25; searchers 3 and 6: 4 · 1.5² = 9; the rest of 35 is 1
    assert (result.raw["calibration"], result.raw["searcher"], result.raw["residual"]) == pytest.approx(
        (25 / 35, 9 / 35, 1 / 35)
    )
    assert "interaction" not in result.raw
    assert result.p["calibration"] == pytest.approx(float(stats.f.sf(25 / 1, 1, 1)))


def test_split_with_seeds_by_hand():
    rng = np.random.default_rng(5)
    values = {key: list(rng.normal(size=3)) for key in itertools.product("xy", "abcd")}
    result = split(grid(values))
    table = np.array([[values[c, s] for s in "abcd"] for c in "xy"])  # [calibration, searcher, seed]
    mean = table.mean()
    ss_calibration = 12 * ((table.mean(axis=(1, 2)) - mean) ** 2).sum()
    ss_searcher = 6 * ((table.mean(axis=(0, 2)) - mean) ** 2).sum()
    ss_within = ((table - table.mean(axis=2, keepdims=True)) ** 2).sum()
    total = ((table - mean) ** 2).sum()
    assert result.raw["calibration"] == pytest.approx(ss_calibration / total)
    assert result.raw["searcher"] == pytest.approx(ss_searcher / total)
    assert result.raw["residual"] == pytest.approx(ss_within / total)
    assert result.raw["interaction"] == pytest.approx((total - ss_calibration - ss_searcher - ss_within) / total)
    assert result.n_searches == 24


def test_perplexities_are_split_by_their_logarithms():
    values = {("x", "a"): [1.0], ("x", "b"): [10.0], ("y", "a"): [100.0], ("y", "b"): [1000.0]}
    result = split(grid(values, PERPLEXITY_METRIC))
    assert (result.raw["calibration"], result.raw["searcher"]) == pytest.approx((0.8, 0.2))


def test_only_searchers_of_every_calibration_are_split():
    values = {("x", "a"): [1.0], ("x", "b"): [3.0], ("y", "a"): [5.0], ("y", "b"): [9.0], ("y", "c"): [99.0]}
    result = split(grid(values))
    assert (result.n_searchers, result.n_searches) == (2, 4)


def test_equal_results_cannot_be_split():
    results = grid({key: [7.0] for key in itertools.product("xy", "ab")})
    assert splits(cells_frame(results), averages(results)) == []


def test_larger_share_is_stable_if_no_searcher_alone_makes_it():
    steady = {(c, s): [10.0 * (c == "y") + 0.1 * i] for c in "xy" for i, s in enumerate("abcd")}
    assert split(grid(steady)).stable is True
    # d is far off by both calibrations: with it searchers matter most, without it calibrations
    outlier = {key: [value[0] + 50.0 * (key[1] == "d")] for key, value in steady.items()}
    assert split(grid(outlier)).stable is False


def test_spreads_hold_the_other_choice_fixed():
    values = {("x", "a"): [1.0], ("x", "b"): [3.0], ("y", "a"): [5.0], ("y", "b"): [4.0]}
    results = grid(values)
    by_choice = {
        change.by: (change.fixed, change.size) for change in largest_changes(cells_frame(results), averages(results)[0])
    }
    assert by_choice == {"calibration": ("a", 4.0), "searcher": ("x", 2.0)}


def test_omega_squared_of_noise_is_about_nothing_whatever_the_number_of_levels():
    rng = np.random.default_rng(3)
    omega = []
    eta = []
    for _ in range(20):
        values = {(c, s): [float(rng.normal())] for c in "wxyz" for s in "abcdefghijklmnop"}
        result = split(grid(values))
        omega.append((result.shares["calibration"], result.shares["searcher"]))
        eta.append((result.raw["calibration"], result.raw["searcher"]))
    assert np.mean(eta, axis=0) == pytest.approx([3 / 63, 15 / 63], abs=0.03)
    assert (np.mean(omega, axis=0) < 0.06).all()


def test_draws_are_nested_in_their_calibration():
    rng = np.random.default_rng(4)
    of_draws = {calibration: rng.normal(size=4) for calibration in "xyz"}
    values = {(c, s): list(of_draws[c] + rng.normal(size=4)) for c in "xyz" for s in "abcde"}
    result = split(grid(values, axis="draw"))
    rows = [(c, f"{c}{d}", s, v) for (c, s), draws in values.items() for d, v in enumerate(draws)]
    data = pd.DataFrame(rows, columns=["calibration", "draw", "searcher", "value"])
    means = data.groupby(["calibration", "draw"])["value"].mean()
    pairs = [stats.ttest_ind(means[a], means[b], equal_var=False).pvalue for a, b in ("xy", "xz", "yz")]
    assert result.p["calibration"] == pytest.approx(min(1, 3 * min(pairs)))  # the calibration against its draws
    assert result.drawn
    assert result.n_draws == 12
    places = data.pivot(index=["calibration", "draw"], columns="searcher", values="value")
    within = stats.permutation_test(
        places.to_numpy().T, lambda *samples: np.var(np.mean(samples, axis=1)),
        permutation_type="samples", vectorized=False, alternative="greater",
        n_resamples=9999, rng=np.random.default_rng(1),
    )  # fmt: skip
    assert result.p["searcher"] == pytest.approx(within.pvalue, abs=0.015)


def test_two_calibrations_are_tested_by_welch_and_searchers_within_each_draw():
    """Compare with scipy and all permutations, where one calibration has ten times the noise of the other."""
    rng = np.random.default_rng(5)
    values = {(c, s): list(noise * rng.normal(size=2)) for c, noise in (("x", 1.0), ("y", 10.0)) for s in "abc"}
    result = split(grid(values, axis="draw"))
    table = np.array([[values[c, s][d] for s in "abc"] for c in "xy" for d in (0, 1)])  # [draws, searchers]
    means = table.mean(axis=1)
    assert result.p["calibration"] == pytest.approx(stats.ttest_ind(means[:2], means[2:], equal_var=False).pvalue)
    orders = itertools.product(itertools.permutations(range(3)), repeat=4)
    spreads = [np.take_along_axis(table, np.array(order), axis=1).mean(axis=0).var() for order in orders]
    assert result.p["searcher"] == pytest.approx(np.mean(np.array(spreads) >= spreads[0] - 1e-9), abs=0.02)


def test_searchers_that_do_not_use_the_objective_are_left_out():
    values = {(c, s): [10.0 * (c == "y") + i] for c in "xy" for i, s in enumerate("abc")}
    results = grid(values)
    cells = [replace(cell, uses_objective=cell.searcher != "c") for cell in results.cells]
    assert split(replace(results, cells=cells)).n_searchers == 2
