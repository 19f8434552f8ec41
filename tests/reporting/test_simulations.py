"""The statistical tests of verdicts, on 400 simulated studies whose truth is known.

Where searchers or calibrations are alike, noise is rejected in one of twenty studies at most, give or take; a
difference of two standard errors is found as often as it should be. experiments/simulated_studies does this with whole
reports.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from raysearch.core.estimate import Estimate
from raysearch.reporting.analysis import correlation, variance
from raysearch.reporting.analysis.comparison import compare
from raysearch.reporting.analysis.contrast import contrasts
from raysearch.reporting.analysis.effect import calibration_effects
from raysearch.reporting.analysis.frame import (
    CALIBRATION_LOSS,
    HELD_OUT_LOSS,
    Quantity,
    averages,
    cells_frame,
    settings,
    with_own_seeds,
)
from raysearch.reporting.analysis.ranking import ranking
from raysearch.reporting.analysis.sides import Side, difference
from raysearch.stats.rank import permutation_p
from raysearch.stats.significance import LEVEL
from tests.reporting.cells import ACCURACY, cell, outcome, study

pytestmark = pytest.mark.slow

STUDIES = 400
MOST = 0.06


def rate(rejects: Callable[[np.random.Generator], bool]) -> float:
    return float(np.mean([rejects(np.random.default_rng(seed)) for seed in range(STUDIES)]))


def p_of(cells: pd.DataFrame, quantity: Quantity) -> float:
    """Return the p of the difference of searchers a and b."""
    first, second = (Side(cells[cells["searcher"] == name], quantity) for name in "ab")
    p = difference(first, second, quantity).p
    assert p is not None
    return p


def frame_of(calibrations: str, searchers: str, draws: int) -> pd.DataFrame:
    """Return the searches of a study of that grid, whose numbers the caller replaces."""
    cells = [
        cell(name, outcome(removed=(0, 1 + i), assessed={"acc": Estimate(1.0)}), calibration, draw=str(draw))
        for calibration, (i, name), draw in itertools.product(calibrations, enumerate(searchers), range(draws))
    ]
    return cells_frame(study(*cells, metrics=(ACCURACY,)))


(AVERAGE,) = averages(study(metrics=(ACCURACY,)))


def held_out(rng: np.random.Generator, draws: int, masks: float, samples: float, rest: float) -> np.ndarray:
    """Return held-out losses of two searchers, [2, draws, draws]: the masks of each draw on the samples of all others.

    Args:
        rng: The source of the noise.
        draws: The number of draws.
        masks: The standard deviation between the masks of one searcher.
        samples: The standard deviation between draws of samples, shared by all masks of a searcher.
        rest: The standard deviation of a single mask on a single draw.
    """
    losses = masks * rng.normal(size=(2, draws, 1)) + samples * rng.normal(size=(2, 1, draws))
    losses = losses + rng.normal(size=draws) + rest * rng.normal(size=(2, draws, draws))
    return np.where(np.eye(draws, dtype=bool), np.nan, losses)


@pytest.mark.parametrize(
    ("noise", "keeps_draws"),
    [((1, 0, 1), True), ((1, 1, 0.5), True), ((0, 1, 0), True), ((0, 1, 0), False)],
    ids=["masks", "both", "samples", "means alone"],
)
@pytest.mark.parametrize("draws", [2, 3, 6])
def test_a_contrast_of_searchers_that_are_alike_is_rarely_significant(
    draws: int, noise: tuple[float, float, float], keeps_draws: bool
) -> None:
    """The design is tested on ten times as many studies; the report's answer is the same test."""
    studies = np.array([held_out(np.random.default_rng(seed), draws, *noise) for seed in range(10 * STUDIES)])
    gaps = studies[:, 0] - studies[:, 1]
    rows = np.nanmean(gaps, axis=2)
    columns = np.nanmean(gaps, axis=1)
    of_rows, of_columns = (means.var(axis=1, ddof=1) / draws for means in (rows, columns))
    error = np.sqrt(of_rows + of_columns if keeps_draws else of_rows * (draws - 1) ** 2)
    p = 2 * stats.t.sf(abs(rows.mean(axis=1)) / error, draws - 1)
    assert np.mean(p <= LEVEL) <= MOST
    frame = frame_of("c", "ab", draws)
    for values, expected in zip(studies[:5], p, strict=False):
        losses = values.reshape(2 * draws, draws)
        by_draw = [{str(i): loss for i, loss in enumerate(row) if keeps_draws and loss == loss} for row in losses]
        cells = frame.assign(held_out=np.nanmean(losses, axis=1), held_out_by_draw=by_draw)
        (contrast,) = contrasts(cells, ["a - b"], [(HELD_OUT_LOSS, None)])
        assert contrast.p == pytest.approx(expected)


def test_a_small_error_by_item_lends_no_freedom_to_a_spread_over_three_draws() -> None:
    """Noise is never rejected if the paired t test of the draws alone does not reject it."""
    frame = frame_of("c", "ab", 3).assign(**{AVERAGE.error: 0.1})
    for seed in range(STUDIES):
        values = np.random.default_rng(seed).normal(size=(2, 3))
        p = p_of(frame.assign(**{AVERAGE.key: values.ravel()}), AVERAGE)
        assert p >= stats.ttest_rel(*values).pvalue * (1 - 1e-9)


@pytest.mark.parametrize(("draws", "freedom"), [(6, 5), (1, 1e9)], ids=["by draw", "by item"])
def test_a_difference_of_two_standard_errors_is_found_as_often_as_it_should_be(draws: int, freedom: float) -> None:
    frame = frame_of("c", "ab", draws).assign(loss_error=1.0)
    effect = 2 * np.sqrt(2 / draws) * np.array([[1.0], [0.0]])

    def rejects(rng: np.random.Generator) -> bool:
        return p_of(frame.assign(loss=(rng.normal(size=(2, draws)) + effect).ravel()), CALIBRATION_LOSS) <= LEVEL

    quantile = stats.t.ppf(1 - LEVEL / 2, freedom)
    power = stats.nct.sf(quantile, freedom, 2) + stats.nct.cdf(-quantile, freedom, 2)
    assert rate(rejects) == pytest.approx(power, abs=3 * np.sqrt(power * (1 - power) / STUDIES))


def test_among_searchers_that_are_alike_none_is_significantly_worse() -> None:
    frame = frame_of("c", "abcde", 1).assign(loss_error=1.0)
    ((setting, _),) = settings(frame)

    def rejects(rng: np.random.Generator) -> bool:
        comparison = compare(setting, frame.assign(loss=rng.normal(size=5)), CALIBRATION_LOSS)
        assert comparison is not None
        return comparison.verdict != "no significant difference"

    assert rate(rejects) <= MOST


@pytest.mark.parametrize("quantity", [CALIBRATION_LOSS, HELD_OUT_LOSS], ids=["calibration", "held out"])
@pytest.mark.parametrize(("calibrations", "draws"), [("c", 3), ("xyz", 2)])
def test_over_settings_searchers_that_are_alike_rarely_differ_significantly(
    calibrations: str, draws: int, quantity: Quantity
) -> None:
    """The samples of a draw favour a searcher at every M, and in held-out losses in every draw."""
    sizes = range(1, 6)
    frame = pd.concat([frame_of(calibrations, "abcdef", draws).assign(remove=size) for size in sizes])
    shape = len(sizes), len(calibrations), 6, draws

    def rejects(rng: np.random.Generator) -> bool:
        of_draws = rng.normal(size=shape[1:] if quantity == CALIBRATION_LOSS else (*shape[1:3], 1))
        values = of_draws + 0.3 * rng.normal(size=shape)
        ranked = ranking(frame.assign(**{quantity.key: values.ravel()}), quantity)
        assert ranked is not None
        assert ranked.n_sets == len(calibrations) * (draws if quantity == CALIBRATION_LOSS else 1)
        return any(pair.significant for pair in ranked.pairs)

    assert rate(rejects) <= MOST


def test_luck_that_is_the_same_in_all_draws_is_not_taken_for_a_searchers_skill() -> None:
    """Two searchers of five draw random numbers, and the same ones in each of six draws."""
    frame = frame_of("xy", "abcde", 6)
    random = frame["searcher"].isin(["d", "e"])
    luck = 2.0 * random.to_numpy().reshape(2, 5, 6)

    def rejects(rng: np.random.Generator, frame: pd.DataFrame) -> bool:
        values = (luck * rng.normal(size=(1, 5, 1)) + rng.normal(size=(2, 5, 6))).ravel()
        ranked = ranking(frame.assign(loss=values), CALIBRATION_LOSS)
        assert ranked is not None
        return any(pair.significant for pair in ranked.pairs)

    seeded = frame.assign(stochastic=random)
    assert rate(lambda rng: rejects(rng, seeded)) <= MOST
    assert rejects(np.random.default_rng(0), frame), "as if nobody drew random numbers"
    assert {*with_own_seeds(seeded)["searcher"]} == {*"abc"}
    assert {*with_own_seeds(seeded.assign(seed=frame["draw"].astype(int)))["searcher"]} == {*"abcde"}


@pytest.mark.parametrize("n", [6, 10])
def test_independent_rankings_are_rarely_significant(n: int) -> None:
    assert rate(lambda rng: permutation_p(rng.normal(size=n), rng.normal(size=n)) <= LEVEL) <= MOST


@pytest.mark.parametrize("recurs", [False, True], ids=["in a draw", "in all draws"])
def test_a_mask_that_searchers_have_in_common_is_not_a_ranking_that_two_quantities_have_in_common(
    recurs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each of three draws, eight searchers find one of four masks, or of five; loss and accuracy are chance."""
    monkeypatch.setattr(correlation, "RESAMPLES", 999)
    frame = frame_of("c", "abcdefgh", 3)

    def rejects(rng: np.random.Generator) -> bool:
        mask_of = rng.integers(5, size=(8, 3)) if recurs else rng.integers([0, 4, 8], [4, 8, 12], size=(8, 3))
        loss, accuracy = rng.normal(size=(2, 12))[:, mask_of.ravel()]
        masks = pd.Series([(0, 1 + mask) for mask in mask_of.ravel()])
        cells = frame.assign(removed=masks, loss=loss, **{AVERAGE.key: accuracy})
        return any(
            result.p is not None and result.p <= LEVEL
            for result in correlation.correlations(cells, [CALIBRATION_LOSS, AVERAGE])
        )

    assert rate(rejects) <= MOST


def test_calibrations_that_are_alike_rarely_differ_significantly_over_draws() -> None:
    """The draws differ, and all searchers of a draw differ in the same way."""
    frame = frame_of("xyz", "abcd", 3)

    def rejects(rng: np.random.Generator) -> bool:
        values = rng.normal(size=(3, 1, 3)) + 0.3 * rng.normal(size=(3, 4, 3))
        effects = calibration_effects(frame.assign(**{AVERAGE.key: values.ravel()}), AVERAGE)
        return any(effect.clear for effect in effects)

    assert rate(rejects) <= MOST


@pytest.mark.parametrize("noise", [(1, 1, 1), (1, 1, 10)], ids=["equal noise", "much by one calibration"])
def test_shares_of_variance_of_nothing_are_rarely_significant(noise, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variance, "RESAMPLES", 999)
    frame = frame_of("xyz", "ab", 3)
    rejections = []
    for seed in range(STUDIES):
        rng = np.random.default_rng(seed)
        values = rng.normal(size=(3, 1, 3)) + 0.3 * rng.normal(size=(3, 2, 3))
        values = values * np.array(noise)[:, None, None]
        (split,) = variance.splits(frame.assign(**{AVERAGE.key: values.ravel()}), [AVERAGE])
        rejections.append([p is not None and p <= LEVEL for p in split.p.values()])
    assert max(np.mean(rejections, axis=0)) <= MOST
