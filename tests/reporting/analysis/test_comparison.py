from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from raysearch.core.estimate import Estimate, Group
from raysearch.reporting.analysis.comparison import Rival
from tests.reporting.cells import ACCURACY, PERPLEXITY_METRIC, cell, compared, outcome


def test_two_searchers_differ_significantly_beyond_the_normal_quantile_of_their_errors():
    noise = stats.norm.ppf(0.975) * math.hypot(0.03, 0.04)
    for gap, tied in ((noise - 1e-6, True), (noise + 1e-6, False)):
        comparison = compared(
            cell("a", outcome(1.0, delta_error=0.03)), cell("b", outcome(1.0 + gap, delta_error=0.04))
        )
        assert [rival.tied for rival in comparison.rivals] == [True, tied]
        assert comparison.rivals[1].noise == pytest.approx(noise)
        assert comparison.verdict == ("no significant difference" if tied else "one is best")


def test_error_of_the_difference_on_the_same_samples_comes_first():
    errors = (("a", 1.0, 0.0), ("b", 1.1, 0.04))
    comparison = compared(*(cell(name, outcome(loss, delta_error=0.5), error_to_best=e) for name, loss, e in errors))
    assert comparison.rivals[1].noise == pytest.approx(stats.norm.ppf(0.975) * 0.04)
    assert comparison.verdict == "one is best"


def test_spread_over_seeds_is_welchs():
    a = [1.0, 1.2, 1.4]
    b = [1.3, 1.5, 1.55, 1.7]
    comparison = compared(
        *(cell(name, outcome(x), seed=i) for name, xs in (("a", a), ("b", b)) for i, x in enumerate(xs))
    )
    test = stats.ttest_ind(b, a, equal_var=False)
    interval = test.confidence_interval(0.95)
    assert comparison.rivals[1].behind == pytest.approx(np.mean(b) - np.mean(a))
    assert comparison.rivals[1].noise == pytest.approx((interval.high - interval.low) / 2)
    assert comparison.rivals[1].tied == (test.pvalue > 0.05)
    assert comparison.best.spread == pytest.approx(np.std(a, ddof=1))


def test_without_errors_or_seeds_only_equal_losses_tie():
    comparison = compared(cell("a", outcome(1.0)), cell("b", outcome(1.0)), cell("c", outcome(1.1)))
    assert [rival.tied for rival in comparison.rivals] == [True, True, None]
    assert comparison.verdict == "cannot tell"


def test_as_good_means_shown_to_be_within_the_margin():
    losses = cell("best", outcome(1.0, delta_error=0.01)), cell("close", outcome(1.01, delta_error=0.01))
    gap = 0.01
    error = math.hypot(0.01, 0.01)
    margins = {None: None, gap + 1.646 * error: True, gap + 1.643 * error: False}
    assert {margin: compared(*losses, margin=margin).rivals[1].equivalent for margin in margins} == margins


def test_p_values_are_corrected_for_all_pairs():
    losses = {"a": 1.0, "b": 1.1, "c": 1.4}
    comparison = compared(*(cell(name, outcome(loss, delta_error=0.1)) for name, loss in losses.items()))
    raw = [2 * stats.norm.sf(gap / math.hypot(0.1, 0.1)) for gap in (0.4, 0.3, 0.1)]
    assert [rival.p for rival in comparison.rivals] == pytest.approx(
        [1.0, max(3 * raw[0], 2 * raw[1], raw[2]), 3 * raw[0]]
    )


def test_one_seed_of_a_searcher_that_draws_random_numbers_is_not_compared():
    fixed = cell("a", outcome(1.0, delta_error=0.01))
    assert compared(fixed, cell("b", outcome(2.0, delta_error=0.01))).rivals[1].tied is False
    assert compared(fixed, cell("b", outcome(2.0, delta_error=0.01), stochastic=True)).verdict == "cannot tell"


def test_seeds_that_draws_share_are_separate_noise():
    rng = np.random.default_rng(3)
    a = rng.normal(size=4)
    b = 9 + rng.normal(size=(4, 3))  # a draw a row, of b a seed a column
    fixed = [cell("a", outcome(loss), draw=str(draw)) for draw, loss in enumerate(a)]

    def beside(seeds: list[list[int]]) -> Rival:
        cells = [
            cell("b", outcome(loss), draw=str(draw), seed=seed, stochastic=True)
            for draw, (draw_seeds, losses) in enumerate(zip(seeds, b, strict=True))
            for seed, loss in zip(draw_seeds, losses[: len(draw_seeds)], strict=True)
        ]
        return compared(*fixed, *cells).rivals[1]

    apart = beside([[0], [1], [2], [3]])
    assert apart.p == pytest.approx(stats.ttest_rel(a, b[:, 0]).pvalue)
    assert apart.tied is False
    assert beside([[0]] * 4).tied is None, "nobody knows what another seed would have found"
    by_draw = (b.mean(axis=1) - a).var(ddof=1) / 4
    by_seed = b.mean(axis=0).var(ddof=1) / 3
    freedom = (by_draw + by_seed) ** 2 / (by_draw**2 / 3 + by_seed**2 / 2)
    half_width = stats.t.ppf(0.975, freedom) * math.sqrt(by_draw + by_seed)
    assert beside([[0, 1, 2]] * 4).noise == pytest.approx(half_width)


def test_rounding_is_no_noise():
    losses = [7.629130628373887, 0.1 + 0.2, 2.0]
    cells = [cell("a", outcome(loss), draw=str(i)) for i, loss in enumerate(losses)]
    cells += [cell("b", outcome(loss * (1 + 2**-52)), draw=str(i)) for i, loss in enumerate(losses)]
    cells += [cell("c", outcome(loss + 0.01 * i), draw=str(i)) for i, loss in enumerate(losses)]
    comparison = compared(*cells)
    assert [(rival.searcher, rival.noise) for rival in comparison.rivals[:2]] == [("a", 0.0), ("b", 0.0)]
    assert comparison.detectable == comparison.rivals[2].detectable
    assert comparison.detectable


def test_the_error_of_a_loss_is_that_over_the_dense_model():
    cells = [cell("a", outcome(loss, dense_loss=dense), draw=dense) for loss, dense in ((2.1, 2.0), (9.3, 9.0))]
    assert compared(*cells).best.error == pytest.approx(0.1)
    assert compared(cell("a", outcome(delta_error=0.3))).best.error == 0.3


def test_the_error_of_what_was_assessed_is_by_items_and_draws():
    perplexities = {"0": (10.0, 0.5), "1": (1000.0, 100.0)}
    cells = [
        cell("a", outcome(assessed={"ppl": Estimate(*estimate)}), draw=draw) for draw, estimate in perplexities.items()
    ]
    rival = compared(*cells, by=PERPLEXITY_METRIC).best
    assert rival.mean == pytest.approx(100)
    assert rival.error == pytest.approx(100 * math.hypot((0.05 + 0.1) / 2, math.log(100) / 2))


def test_draws_are_paired():
    a = [1.0, 2.0, 3.0, 4.0]
    b = [1.1, 2.3, 3.1, 4.2]
    sides = (("a", a), ("b", b))
    comparison = compared(*(cell(name, outcome(x), draw=str(i)) for name, xs in sides for i, x in enumerate(xs)))
    test = stats.ttest_rel(b, a)
    assert comparison.rivals[1].behind == pytest.approx(0.175)
    assert comparison.rivals[1].p == pytest.approx(test.pvalue)
    interval = test.confidence_interval(0.95)
    assert comparison.rivals[1].noise == pytest.approx((interval.high - interval.low) / 2)


def test_an_unfinished_study_compares_on_the_draws_that_both_have():
    losses = {"0": 1.0, "1": 3.0, "2": 3.2}
    whole = [cell("a", outcome(loss, delta_error=0.01), draw=draw) for draw, loss in losses.items()]
    comparison = compared(*whole, cell("b", outcome(1.005, delta_error=0.01), draw="0"))
    assert [(rival.searcher, rival.mean) for rival in comparison.rivals] == [("a", 1.0), ("b", 1.005)], (
        "b is not better by 1.4"
    )
    assert comparison.rivals[1].behind == pytest.approx(0.005)
    assert comparison.rivals[1].tied
    assert compared(*whole, cell("b", outcome(9.0, delta_error=0.01), draw="3")).rivals[1].tied is None


def test_a_ruined_model_is_neither_the_best_nor_tied():
    def outcomes(*perplexities: float) -> list[tuple[float, bool | None]]:
        assessed = [
            {"ppl": Estimate(perplexity, None if math.isinf(perplexity) else 0.1)} for perplexity in perplexities
        ]
        cells = [cell(str(i), outcome(removed=(0, i + 1), assessed=values)) for i, values in enumerate(assessed)]
        return [(rival.behind, rival.tied) for rival in compared(*cells, by=PERPLEXITY_METRIC).rivals]

    assert outcomes(10.0, math.inf, math.inf) == [(0.0, True), (math.inf, None), (math.inf, None)]
    assert outcomes(math.inf, math.inf) == [(math.inf, None)] * 2


def test_items_are_paired():
    rng = np.random.default_rng(1)
    hard = rng.normal(size=200)  # what items have in common is most of their spread
    a = hard + 0.1 * rng.normal(size=200)
    b = hard + 0.03 + 0.1 * rng.normal(size=200)
    cells = [
        cell(name, outcome(assessed={"acc": Estimate(x.mean(), x.std() / 14)}, items={"acc": tuple(x / 200)}))
        for name, x in (("a", a), ("b", b))
    ]
    assert compared(*cells, by=ACCURACY).rivals[1].p == pytest.approx(stats.ttest_rel(a, b).pvalue)


@pytest.mark.parametrize("group", ["accuracy", "generation"])
def test_right_and_wrong_answers_are_compared_by_mcnemars_exact_test(group: Group):
    right = np.zeros((2, 50))
    right[0, :9] = 1
    right[1, 8:10] = 1
    cells = [
        cell(name, outcome(assessed={"acc": Estimate(2 * x.sum())}, items={"acc": tuple(2 * x)}))
        for name, x in zip("ab", right, strict=True)
    ]
    metric = replace(ACCURACY, group=group)
    assert compared(*cells, by=metric).rivals[1].p == pytest.approx(stats.binomtest(1, 9).pvalue)


def test_negative_and_zero_losses_compare_as_any():
    comparison = compared(cell("a", outcome(0.0, delta_error=0.01)), cell("b", outcome(-2.0, delta_error=0.01)))
    assert [rival.searcher for rival in comparison.rivals] == ["b", "a"]
    assert comparison.rivals[1].behind == pytest.approx(2.0)


def test_masks_of_the_wrong_size_are_not_compared():
    comparison = compared(cell("a", outcome(1.0)), cell("b", outcome(0.1, removed=(3,))))
    assert [rival.searcher for rival in comparison.rivals] == ["a"]


def test_as_good_is_corrected_for_all_pairs():
    names = ("best", "one", "other")
    losses = [cell(name, outcome(1.0 + 1e-9 * place, delta_error=0.01)) for place, name in enumerate(names)]
    error = math.hypot(0.01, 0.01)
    alone = stats.norm.isf(0.05) * error
    of_three = stats.norm.isf(0.05 / 3) * error
    for margin, expected in (((alone + of_three) / 2, False), (1.01 * of_three, True)):
        assert [rival.equivalent for rival in compared(*losses, margin=margin).rivals[1:]] == [expected] * 2
