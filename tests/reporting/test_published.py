"""The published study through the report's own code: its tables hold together, and give the numbers of its text."""

from __future__ import annotations

import math
import statistics

import pandas as pd
import pytest

from raysearch.reporting.findings import correlation_sentence, findings, spread_sentence
from raysearch.reporting.stats.analysis import Analysis, analyse
from tests.reporting.published import (
    ACCURACIES,
    ACCURACY_FILES,
    CALIBRATED_PERPLEXITY,
    FOLDER,
    INDEX,
    MARGIN,
    PERPLEXITIES,
    assessed,
    printed,
    published_study,
)

LLAMAS = ("LLaMA3 8B", "LLaMA3.1 8B")


@pytest.fixture(scope="module")
def published() -> Analysis:
    return analyse(published_study())


def half_a_digit(columns: pd.DataFrame) -> pd.DataFrame:
    """The most that rounding moves each printed number."""
    return 0.5 * 10.0 ** -columns.apply(lambda column: column.str.partition(".")[2].str.len())


def test_printed_averages_are_the_means_of_their_columns() -> None:
    for file, group in {"table1_perplexity": PERPLEXITIES, **dict.fromkeys(ACCURACY_FILES, ACCURACIES)}.items():
        rows = printed(file)
        columns, average = rows[list(group)], rows[["Avg"]]
        off = (columns.astype(float).mean(axis=1) - average["Avg"].astype(float)).abs()
        # columns and average are each rounded to the digits that they show
        most = half_a_digit(columns).mean(axis=1) + half_a_digit(average)["Avg"] + 1e-9
        assert rows[off > most].empty, file


def test_every_combination_is_there_once() -> None:
    found = assessed()
    assert found.shape == (2 * 3 * (1 + 2 * 7), len(PERPLEXITIES) + len(ACCURACIES) + 2)
    assert found.index.is_unique and found.notna().all(axis=None)


def test_dense_models_are_the_same_by_both_calibrations() -> None:
    dense = assessed().xs("Dense", level="method")
    assert (dense.groupby("model").nunique() == 1).all(axis=None)


def test_methods_with_equal_perplexities_have_equal_accuracies() -> None:
    """The same mask shows in every column, so a slip in transcribing one of them would show here."""
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
    found = assessed()["Avg accuracy"].xs((MARGIN, "LLaMA3 8B", 7), level=("calibration", "model", "remove"))
    assert times.to_dict() == found[times.index].to_dict()


@pytest.mark.parametrize(
    ("calibration", "median", "low", "high", "positive"),
    [(MARGIN, "+0.55", "+0.20", "+0.78", 6), (CALIBRATED_PERPLEXITY, "-0.27", "-0.78", "+0.11", 1)],
)
def test_rank_correlations_of_section_5_3(
    published: Analysis, calibration: str, median: str, low: str, high: str, positive: int
) -> None:
    """Average perplexity, lower being better, with average accuracy; ties share ranks."""
    found = [one for one in published.correlations if one.setting.calibration == calibration]
    rhos = [one.rho for one in found if one.rho is not None]
    assert len(rhos) == 6
    assert {one.n for one in found} == {7}
    assert f"{statistics.median(rhos):+.2f}" == median
    assert (f"{min(rhos):+.2f}", f"{max(rhos):+.2f}") == (low, high)
    assert sum(rho > 0 for rho in rhos) == positive
    sentence = correlation_sentence(found)
    assert sentence.startswith(f"median ρ {median}, range {low} to {high}, {positive} positive")


def test_no_single_correlation_is_clear_of_zero_as_section_5_3_warns(published: Analysis) -> None:
    assert all(
        one.low is not None and one.high is not None and one.low <= 0 <= one.high for one in published.correlations
    )
    assert min(one.p for one in published.correlations if one.p is not None) > 0.03


def test_spreads_of_section_5_2(published: Analysis) -> None:
    accuracy = published.averages[-1]
    by_calibration = spread_sentence(published.spreads, accuracy, "calibration")
    by_searcher = spread_sentence(published.spreads, accuracy, "searcher")
    assert "up to 5.76 points (Qwen3 8B, M = 9, Greedy iterative)" in by_calibration
    assert f"up to 7.51 points (Qwen3 8B, M = 9, {MARGIN})" in by_searcher


def test_calibration_shifts_perplexity_by_up_to_three_orders_of_magnitude(published: Analysis) -> None:
    largest = max(
        (one for one in published.spreads if one.quantity.group == "perplexity" and one.by == "calibration"),
        key=lambda one: one.size,
    )
    assert (*largest.panel, largest.fixed) == ("Qwen3 8B", 9, "One-shot")
    assert 3 < math.log10(largest.size) < 4


def test_calibration_dominates_perplexity_but_not_accuracy(published: Analysis) -> None:
    shares = {
        group: [(one.raw.calibration, one.raw.searcher) for one in published.splits if one.quantity.group == group]
        for group in ("perplexity", "accuracy")
    }
    assert all(calibration > searcher for calibration, searcher in shares["perplexity"])
    assert sum(calibration > searcher for calibration, searcher in shares["accuracy"]) < 3


def test_findings_do_not_recommend_without_knowing_the_noise(published: Analysis) -> None:
    first, within, *_ = findings(published)
    assert first.sure == "not told apart"
    assert "but no searcher is told from it" in first.verdict
    assert within.sure == "cannot tell"
    assert "within a setting cannot be told" in within.verdict


def test_agreement_table_is_consistent() -> None:
    for row in agreements().itertuples():
        common, union, remove = row.removed_by_all, row.removed_by_any, row.remove
        assert row.lowest <= row.mean <= row.highest
        assert common <= remove <= union
        assert common / union == pytest.approx(row.full_overlap, abs=0.0005)
        assert row.lowest >= common / (2 * remove - common) - 0.0005  # every two masks share at least what all share
        for end in (row.lowest, row.highest):  # two masks of M layers that share k of them
            assert min(abs(k / (2 * remove - k) - end) for k in range(remove + 1)) < 0.0006


def test_agreement_means_of_section_5_1() -> None:
    table = agreements()
    family = table["model"].map(lambda model: "LLaMA" if model in LLAMAS else "Qwen3")
    means = table.groupby(family.where(table["calibration"] != MARGIN, MARGIN))["mean"].mean()
    assert means.round(2).to_dict() == {"LLaMA": 0.63, "Qwen3": 0.36, MARGIN: 0.51}


def test_highest_similarity_is_1_only_where_two_methods_found_the_same_mask() -> None:
    found = assessed()
    for row in agreements().itertuples():
        seen = found.xs((row.calibration, row.model, row.remove), level=("calibration", "model", "remove"))
        assert seen.duplicated().any() == (row.highest == 1.0), row


def agreements() -> pd.DataFrame:
    """Table 5."""
    return pd.read_csv(FOLDER / "table5_jaccard.csv")
