"""The published study in this report's code: its tables are consistent, and give the numbers of its text."""

from __future__ import annotations

import math
import statistics

import pytest

from raysearch.reporting.analysis.analyse import Analysis, analyse
from raysearch.reporting.findings import change_sentence, correlation_sentence, findings
from tests.reporting.published import (
    ACCURACIES,
    CALIBRATED_PERPLEXITY,
    INDEX,
    MARGIN,
    PERPLEXITIES,
    assessed,
    printed,
    published_study,
)


@pytest.fixture(scope="module")
def published() -> Analysis:
    return analyse(published_study())


def test_every_combination_is_there_once() -> None:
    rows = assessed()
    assert rows.shape == (2 * 3 * (1 + 2 * 7), len(PERPLEXITIES) + len(ACCURACIES) + 2)
    assert rows.index.is_unique
    assert rows.notna().all(axis=None)


def test_dense_models_are_the_same_by_both_calibrations() -> None:
    dense = assessed().xs("Dense", level="method")
    assert (dense.groupby("model").nunique() == 1).all(axis=None)


def test_methods_with_equal_perplexities_have_equal_accuracies() -> None:
    """Equal masks have equal numbers in every column, so a transcription error in one column is found."""
    for setting, methods in assessed().groupby(["calibration", "model", "remove"]):
        alike = [methods.duplicated(list(group), keep=False) for group in (PERPLEXITIES, ACCURACIES)]
        assert alike[0].equals(alike[1]), setting


def test_averages_by_our_code_are_the_printed_ones(published: Analysis) -> None:
    ours = published.frame.rename(columns={"searcher": "method"}).set_index(INDEX)
    theirs = assessed().loc[ours.index]
    for group in ("perplexity", "accuracy"):
        assert ours[f"{group}_average"].to_numpy() == pytest.approx(theirs[f"Avg {group}"].to_numpy(), rel=3e-4)


def test_time_table_repeats_the_averages_of_its_setting() -> None:
    times = printed("table4_time").set_index("method")["Avg"].astype(float)
    accuracies = assessed()["Avg accuracy"].xs((MARGIN, "LLaMA3 8B", 7), level=("calibration", "model", "remove"))
    assert times.to_dict() == accuracies[times.index].to_dict()


@pytest.mark.parametrize(
    ("calibration", "median", "low", "high", "positive"),
    [(MARGIN, "+0.55", "+0.20", "+0.78", 6), (CALIBRATED_PERPLEXITY, "-0.27", "-0.78", "+0.11", 1)],
)
def test_rank_correlations_of_section_5_3(
    published: Analysis, calibration: str, median: str, low: str, high: str, positive: int
) -> None:
    """Average perplexity, lower being better, with average accuracy; ties share ranks."""
    of_calibration = [
        correlation for correlation in published.correlations if correlation.setting.calibration == calibration
    ]
    rhos = [correlation.rho for correlation in of_calibration if correlation.rho is not None]
    assert len(rhos) == 6
    assert {correlation.n for correlation in of_calibration} == {7}
    assert f"{statistics.median(rhos):+.2f}" == median
    assert (f"{min(rhos):+.2f}", f"{max(rhos):+.2f}") == (low, high)
    assert sum(rho > 0 for rho in rhos) == positive
    sentence = correlation_sentence(of_calibration)
    assert sentence.startswith(f"median ρ {median}, range {low} to {high}, {positive} positive")


def test_no_single_correlation_is_clear_of_zero_as_section_5_3_warns(published: Analysis) -> None:
    intervals = [(correlation.low, correlation.high) for correlation in published.correlations]
    assert all(low is not None and high is not None and low <= 0 <= high for low, high in intervals)
    assert min(correlation.p for correlation in published.correlations if correlation.p is not None) > 0.03


def test_spreads_of_section_5_2(published: Analysis) -> None:
    accuracy = published.averages[-1]
    by_calibration = change_sentence(published.largest_changes, accuracy, "calibration")
    by_searcher = change_sentence(published.largest_changes, accuracy, "searcher")
    assert "up to 5.76 points (Qwen3 8B, M = 9, Greedy iterative)" in by_calibration
    assert f"up to 7.51 points (Qwen3 8B, M = 9, {MARGIN})" in by_searcher


def test_calibration_shifts_perplexity_by_up_to_three_orders_of_magnitude(published: Analysis) -> None:
    largest = max(
        (
            change
            for change in published.largest_changes
            if change.quantity.group == "perplexity" and change.by == "calibration"
        ),
        key=lambda change: change.size,
    )
    assert (*largest.panel, largest.fixed) == ("Qwen3 8B", 9, "One-shot")
    assert 3 < math.log10(largest.size) < 4


def test_calibration_dominates_perplexity_but_not_accuracy(published: Analysis) -> None:
    shares = {
        group: [
            (split.raw["calibration"], split.raw["searcher"])
            for split in published.splits
            if split.quantity.group == group
        ]
        for group in ("perplexity", "accuracy")
    }
    assert all(calibration > searcher for calibration, searcher in shares["perplexity"])
    assert sum(calibration > searcher for calibration, searcher in shares["accuracy"]) < 3


def test_findings_do_not_recommend_without_knowing_the_noise(published: Analysis) -> None:
    within, *_ = (finding for finding in findings(published) if finding.question == "Which searcher?")
    assert within.sure == "cannot tell"
    assert "It is not known whether searchers differ by" in within.verdict
    over, *_ = (finding for finding in findings(published) if finding.question == "Searchers over all settings")
    assert over.sure == "not significant"
    assert "but no searcher is significantly worse" in over.verdict
