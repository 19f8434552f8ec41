"""Every statistic of a report against a library that has it, or against numbers worked out by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from raysearch.core.estimate import Estimate, Metric
from raysearch.core.mask import Mask
from raysearch.core.measure import PERPLEXITY
from raysearch.reporting.stats.agreement import agreements, cross_agreements, expected_jaccard, similarity
from raysearch.reporting.stats.comparison import compare
from raysearch.reporting.stats.correlation import bootstrap_interval, correlations, spearman
from raysearch.reporting.stats.effect import calibration_effects
from raysearch.reporting.stats.frame import CALIBRATION_LOSS, averages, averages_of, cells_frame, settings
from raysearch.reporting.stats.variance import splits, spreads
from raysearch.study.result import CellResult, Outcome, StudyResults

ACCURACY = Metric("acc", "Accuracy", "accuracy", "%", True)
PERPLEXITY_METRIC = Metric("ppl", "Perplexity", "perplexity", "perplexity", False)


def outcome(loss: float = 1.0, **changes: object) -> Outcome:
    values = {
        "removed": (1, 2), "measure": PERPLEXITY, "dense_loss": 0.5, "loss": loss, "delta_error": None,
        "evaluations": 10, "layer_forwards_alone": 100.0, "layer_forwards_naive": 300.0,
        "layer_forwards_shared": 50.0, "seconds": 1.0, "path": {}, "best_so_far": (), **changes,
    }  # fmt: skip
    return Outcome(**values)  # type: ignore[arg-type]


def cell(searcher: str, found: Outcome | None, calibration: str = "c", remove: int = 2, seed: int = 0) -> CellResult:
    state = "waiting" if found is None else "finished"
    return CellResult("m", calibration, searcher, remove, seed, state, None, None, None, found)  # type: ignore[arg-type]


def study(*cells: CellResult, metrics: tuple[Metric, ...] = ()) -> StudyResults:
    return StudyResults("s", "s", cells, {"m": 12}, metrics, {}, {})


def compared(*cells: CellResult):
    frame = cells_frame(study(*cells))
    ((setting, found),) = settings(frame)
    comparison = compare(setting, found, CALIBRATION_LOSS)
    assert comparison is not None
    return comparison


# --- which searcher is best


def test_searchers_tie_within_two_standard_errors_and_not_beyond():
    noise = 2 * math.hypot(0.03, 0.04)
    for gap, tied in ((noise - 1e-6, True), (noise + 1e-6, False)):
        found = compared(cell("a", outcome(1.0, delta_error=0.03)), cell("b", outcome(1.0 + gap, delta_error=0.04)))
        assert [rival.tied for rival in found.rivals] == [True, tied]
        assert found.rivals[1].noise == pytest.approx(noise)
        assert found.verdict == ("all tie" if tied else "one is best")


def test_error_of_the_difference_on_the_same_samples_comes_first():
    found = compared(
        cell("a", outcome(1.0, delta_error=0.5, error_to_best=0.0)),
        cell("b", outcome(1.1, delta_error=0.5, error_to_best=0.04)),
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
    assert [rival.summary.searcher for rival in found.rivals] == ["b", "a"]
    assert found.rivals[1].behind == pytest.approx(2.0)


def test_masks_of_the_wrong_size_are_not_compared():
    found = compared(cell("a", outcome(1.0)), cell("b", outcome(0.1, removed=(3,))))
    assert [rival.summary.searcher for rival in found.rivals] == ["a"]


# --- averages


def test_average_needs_every_metric_and_joins_errors_in_quadrature():
    metrics = tuple(Metric(name, name, "accuracy", "%", True) for name in "xyz")
    whole = study(metrics=metrics)
    values = {"x": Estimate(60, 3), "y": Estimate(70, 4), "z": Estimate(80, 12)}
    assert averages_of(values, whole)["accuracy_average"] == Estimate(70, 13 / 3)
    assert averages_of({name: values[name] for name in "xy"}, whole) == {}
    without = averages_of({**values, "z": Estimate(80)}, whole)["accuracy_average"]
    assert without == Estimate(70, None)


def test_speeds_are_not_averaged():
    assert averages(study(metrics=(Metric("t", "t", "speed", "tokens/s", True),))) == []


# --- agreement of masks


def test_agreement_by_hand():
    masks = {"a": (0, 1), "b": (1, 2), "c": (1, 2)}
    frame = cells_frame(study(*(cell(name, outcome(removed=mask)) for name, mask in masks.items())))
    (found,) = agreements(frame, {"m": 12})
    assert found.mean == pytest.approx((1 / 3 + 1 / 3 + 1) / 3)
    assert found.lowest == pytest.approx(1 / 3)
    assert found.highest == 1.0
    assert (found.removed_by_all, found.removed_by_any) == (1, 3)
    assert found.full_overlap == pytest.approx(1 / 3)
    assert found.between_seeds is None


def test_seeds_of_one_searcher_are_told_from_searchers():
    frame = cells_frame(
        study(
            cell("a", outcome(removed=(0, 1)), seed=0),
            cell("a", outcome(removed=(2, 3)), seed=1),
            cell("b", outcome(removed=(0, 1))),
        )
    )
    (found,) = agreements(frame, {"m": 12})
    assert found.between_seeds == 0.0
    assert found.mean == 0.5  # one seed of a is b's mask, the other shares nothing


@pytest.mark.parametrize(("n_layers", "n_remove"), [(6, 1), (6, 3), (8, 5), (5, 5)])
def test_chance_agreement_is_the_mean_over_all_pairs(n_layers: int, n_remove: int):
    masks = [Mask(layers) for layers in itertools.combinations(range(n_layers), n_remove)]
    assert expected_jaccard(n_layers, n_remove) == pytest.approx(similarity(masks, masks))


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


# --- rank correlation


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
    low, high, undefined = bootstrap_interval(x, y)
    theirs = stats.bootstrap(
        (x, y), lambda a, b, axis: spearman(a, b), paired=True, vectorized=True, method="percentile",
        n_resamples=9999, rng=np.random.default_rng(1),
    ).confidence_interval  # fmt: skip
    assert low == pytest.approx(theirs.low, abs=0.03)
    assert high == pytest.approx(theirs.high, abs=0.03)
    assert undefined == 0.0


def test_bootstrap_leaves_out_resamples_without_a_correlation():
    x, y = np.array([1.0, 1, 1, 1, 2]), np.array([1.0, 2, 3, 4, 5])
    low, high, undefined = bootstrap_interval(x, y)
    assert undefined == pytest.approx((4 / 5) ** 5 + (1 / 5) ** 5, abs=0.02)
    assert low is not None
    assert high is not None
    assert bootstrap_interval(np.ones(5), y) == (None, None, 1.0)


def test_correlation_is_of_what_is_better():
    """Lower losses with higher accuracies: +1. A constant side has no correlation, and says so."""
    made = [
        cell(f"s{i}", outcome(1.0 + i, assessed={"acc": Estimate(90.0 - i), "ppl": Estimate(7.0)})) for i in range(5)
    ]
    results = study(*made, metrics=(ACCURACY, PERPLEXITY_METRIC))
    frame = cells_frame(results)
    found = correlations(frame, [CALIBRATION_LOSS, *averages(results)])
    rhos = {(one.first.key, one.second.key): one.rho for one in found}
    assert rhos["loss", "accuracy_average"] == pytest.approx(1.0)
    assert rhos["loss", "perplexity_average"] is None


# --- calibration and searcher


def grid(values: dict[tuple[str, str], list[float]], metric: Metric = ACCURACY) -> StudyResults:
    made = [
        cell(searcher, outcome(assessed={metric.name: Estimate(value)}), calibration, seed=seed)
        for (calibration, searcher), seeds in values.items()
        for seed, value in enumerate(seeds)
    ]
    return study(*made, metrics=(metric,))


def test_split_without_seeds_by_hand():
    values = {("x", "a"): [1.0], ("x", "b"): [3.0], ("y", "a"): [5.0], ("y", "b"): [9.0]}
    results = grid(values)
    (found,) = splits(cells_frame(results), averages(results))
    # mean 4.5; calibrations 2 and 7: 4 · 2.5² = 25; searchers 3 and 6: 4 · 1.5² = 9; the rest of 35 is 1
    assert (found.calibration, found.searcher, found.residual) == pytest.approx((25 / 35, 9 / 35, 1 / 35))
    assert found.interaction is None
    assert found.p_calibration == pytest.approx(float(stats.f.sf(25 / 1, 1, 1)))


def test_split_with_seeds_by_hand():
    rng = np.random.default_rng(5)
    values = {key: list(rng.normal(size=3)) for key in itertools.product("xy", "abcd")}
    results = grid(values)
    (found,) = splits(cells_frame(results), averages(results))
    table = np.array([[values[c, s] for s in "abcd"] for c in "xy"])  # [calibration, searcher, seed]
    mean = table.mean()
    ss_calibration = 12 * ((table.mean(axis=(1, 2)) - mean) ** 2).sum()
    ss_searcher = 6 * ((table.mean(axis=(0, 2)) - mean) ** 2).sum()
    ss_within = ((table - table.mean(axis=2, keepdims=True)) ** 2).sum()
    total = ((table - mean) ** 2).sum()
    assert found.calibration == pytest.approx(ss_calibration / total)
    assert found.searcher == pytest.approx(ss_searcher / total)
    assert found.residual == pytest.approx(ss_within / total)
    assert found.interaction == pytest.approx((total - ss_calibration - ss_searcher - ss_within) / total)
    assert found.n_searches == 24


def test_perplexities_are_split_by_their_logarithms():
    values = {("x", "a"): [1.0], ("x", "b"): [10.0], ("y", "a"): [100.0], ("y", "b"): [1000.0]}
    results = grid(values, PERPLEXITY_METRIC)
    (found,) = splits(cells_frame(results), averages(results))
    assert (found.calibration, found.searcher) == pytest.approx((0.8, 0.2))


def test_only_searchers_of_every_calibration_are_split():
    values = {("x", "a"): [1.0], ("x", "b"): [3.0], ("y", "a"): [5.0], ("y", "b"): [9.0], ("y", "c"): [99.0]}
    results = grid(values)
    (found,) = splits(cells_frame(results), averages(results))
    assert (found.n_searchers, found.n_searches) == (2, 4)


def test_equal_results_cannot_be_split():
    results = grid({key: [7.0] for key in itertools.product("xy", "ab")})
    assert splits(cells_frame(results), averages(results)) == []


def test_larger_share_is_stable_if_no_searcher_alone_makes_it():
    steady = {(c, s): [10.0 * (c == "y") + 0.1 * i] for c in "xy" for i, s in enumerate("abcd")}
    (found,) = splits(cells_frame(grid(steady)), averages(grid(steady)))
    assert found.stable is True
    # d is far off by both calibrations: with it searchers matter most, without it calibrations
    outlier = {key: [value[0] + 50.0 * (key[1] == "d")] for key, value in steady.items()}
    (found,) = splits(cells_frame(grid(outlier)), averages(grid(outlier)))
    assert found.stable is False


def test_calibration_effect_is_a_paired_interval():
    x, y = [60.0, 61.0, 64.0, 59.0], [57.0, 60.0, 61.0, 58.5]
    values = {("x", name): [value] for name, value in zip("abcd", x, strict=True)}
    values |= {("y", name): [value] for name, value in zip("abcd", y, strict=True)}
    results = grid(values)
    (found,) = calibration_effects(cells_frame(results), averages(results))
    interval = stats.ttest_rel(x, y).confidence_interval(0.95)
    assert (found.best, found.second, found.n_searchers) == ("x", "y", 4)
    assert found.low == pytest.approx(interval.low)
    assert found.high == pytest.approx(interval.high)
    assert found.clear == (interval.low > 0)


def test_calibration_effect_on_perplexity_is_a_ratio_and_lower_wins():
    values = {("x", "a"): [40.0], ("x", "b"): [90.0], ("y", "a"): [10.0], ("y", "b"): [10.0]}
    results = grid(values, PERPLEXITY_METRIC)
    (found,) = calibration_effects(cells_frame(results), averages(results))
    assert found.best == "y"
    assert found.gain == pytest.approx(6.0)


def test_spreads_hold_the_other_choice_fixed():
    values = {("x", "a"): [1.0], ("x", "b"): [3.0], ("y", "a"): [5.0], ("y", "b"): [4.0]}
    results = grid(values)
    found = {one.by: (one.fixed, one.size) for one in spreads(cells_frame(results), averages(results)[0])}
    assert found == {"calibration": ("a", 4.0), "searcher": ("x", 2.0)}
