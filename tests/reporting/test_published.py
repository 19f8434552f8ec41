"""The published study through the report's own code: its tables hold together, and give the numbers of its text."""

from __future__ import annotations

import math
import statistics

import pytest

from raysearch.reporting.findings.findings import correlation_sentence, findings, spread_sentence
from raysearch.reporting.stats.analysis import Analysis, analyse
from tests.reporting.published import (
    ACCURACIES,
    CALIBRATED_PERPLEXITY,
    MARGIN,
    PERPLEXITIES,
    Key,
    assessed,
    published_study,
    rows,
)

LLAMAS = ("LLaMA3 8B", "LLaMA3.1 8B")


@pytest.fixture(scope="module")
def published() -> Analysis:
    return analyse(published_study())


def half_a_digit(printed: str) -> float:
    """The most that rounding moves a printed number."""
    return 0.5 * 10.0 ** -len(printed.partition(".")[2])


@pytest.mark.parametrize("group", [PERPLEXITIES, ACCURACIES], ids=["perplexities", "accuracies"])
def test_printed_averages_are_the_means_of_their_columns(group: tuple[str, ...]) -> None:
    files = ["table1_perplexity"] if group == PERPLEXITIES else [
        "table2_margin_accuracy", "table3_perplexity_accuracy", "table6_margin_accuracy_llama3",
        "table7_perplexity_accuracy_llama3",
    ]  # fmt: skip
    for file in files:
        for row in rows(file):
            mean = math.fsum(float(row[name]) for name in group) / len(group)
            # columns and average are each rounded to the digits that they show
            columns = math.fsum(half_a_digit(row[name]) for name in group) / len(group)
            assert mean == pytest.approx(float(row["Avg"]), abs=columns + half_a_digit(row["Avg"]) + 1e-9), (file, row)


def test_every_combination_is_there_once() -> None:
    found = assessed()
    assert len(found) == 2 * 3 * (1 + 2 * 7)
    assert all(len(numbers) == len(PERPLEXITIES) + len(ACCURACIES) + 2 for numbers in found.values())


def test_dense_models_are_the_same_by_both_calibrations() -> None:
    dense = {key[:2]: numbers for key, numbers in assessed().items() if key[2] == "Dense"}
    for model in {model for _, model in dense}:
        assert dense[MARGIN, model] == dense[CALIBRATED_PERPLEXITY, model]


def test_methods_with_equal_perplexities_have_equal_accuracies() -> None:
    """The same mask shows in every column, so a slip in transcribing one of them would show here."""
    found = assessed()
    for (calibration, model, method, remove), numbers in found.items():
        for (*other_setting, other_method, other_remove), others in found.items():
            same_setting = (calibration, model, remove) == (*other_setting, other_remove)
            if same_setting and method < other_method:
                perplexities = all(numbers[name] == others[name] for name in PERPLEXITIES)
                accuracies = all(numbers[name] == others[name] for name in ACCURACIES)
                assert perplexities == accuracies, (calibration, model, remove, method, other_method)


def test_averages_by_our_code_are_the_printed_ones(published: Analysis) -> None:
    printed = assessed()
    for cell in published.frame.to_dict("records"):
        key: Key = cell["calibration"], cell["model"], cell["searcher"], cell["remove"]
        for group in ("perplexity", "accuracy"):
            assert cell[f"{group}_average"] == pytest.approx(printed[key][f"Avg {group}"], rel=3e-4)


def test_time_table_repeats_the_averages_of_its_setting() -> None:
    for row in rows("table4_time"):
        key = MARGIN, "LLaMA3 8B", row["method"], 7
        assert float(row["Avg"]) == assessed()[key]["Avg accuracy"]


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
        group: [(one.calibration, one.searcher) for one in published.splits if one.quantity.group == group]
        for group in ("perplexity", "accuracy")
    }
    assert all(calibration > searcher for calibration, searcher in shares["perplexity"])
    assert sum(calibration > searcher for calibration, searcher in shares["accuracy"]) < 3


def test_findings_do_not_recommend_without_knowing_the_noise(published: Analysis) -> None:
    first = findings(published)[0]
    assert first.sure == "cannot tell"
    assert "No searcher can be recommended" in first.verdict


def test_agreement_table_is_consistent() -> None:
    for row in rows("table5_jaccard"):
        mean, low, high = float(row["mean"]), float(row["lowest"]), float(row["highest"])
        common, union, remove = int(row["removed_by_all"]), int(row["removed_by_any"]), int(row["remove"])
        assert low <= mean <= high
        assert common <= remove <= union
        assert common / union == pytest.approx(float(row["full_overlap"]), abs=0.0005)
        assert low >= common / (2 * remove - common) - 0.0005  # every two masks share at least what all share
        for end in (low, high):  # two masks of M layers that share k of them
            assert min(abs(k / (2 * remove - k) - end) for k in range(remove + 1)) < 0.0006


def test_agreement_means_of_section_5_1() -> None:
    means: dict[str, list[float]] = {}
    for row in rows("table5_jaccard"):
        family = "LLaMA" if row["model"] in LLAMAS else "Qwen3"
        key = MARGIN if row["calibration"] == MARGIN else family
        means.setdefault(key, []).append(float(row["mean"]))
    rounded = {key: round(statistics.fmean(values), 2) for key, values in means.items()}
    assert rounded == {"LLaMA": 0.63, "Qwen3": 0.36, MARGIN: 0.51}


def test_highest_similarity_is_1_only_where_two_methods_found_the_same_mask() -> None:
    found = assessed()
    for row in rows("table5_jaccard"):
        place = row["calibration"], row["model"], int(row["remove"])
        seen = [tuple(n.values()) for key, n in found.items() if (key[0], key[1], key[3]) == place]
        assert (len(set(seen)) < len(seen)) == (float(row["highest"]) == 1.0), row
