"""The committed study: what pooling baselines hides, and the findings that hold."""

from __future__ import annotations

import runpy
from pathlib import Path
from statistics import fmean

import pytest

from raysearch.reporting.findings import findings
from raysearch.reporting.stats.agreement import agreements, cross_agreements
from raysearch.reporting.stats.analysis import Analysis, analyse
from raysearch.reporting.stats.frame import averages, cells_frame
from raysearch.reporting.stats.variance import splits
from tests.reporting.committed import FOLDER, RESULTS, SEVEN, committed_study


@pytest.fixture(scope="module")
def committed() -> Analysis:
    return analyse(committed_study())


def raw_shares(searchers=None, pool_baselines=False):
    results = committed_study(searchers)
    frame = cells_frame(results)
    frame = frame.assign(uses_objective=True) if pool_baselines else frame
    return {
        (one.panel.remove, one.quantity.group): (round(one.raw.calibration, 2), round(one.raw.searcher, 2))
        for one in splits(frame, averages(results))
    }


def test_shares_of_variance_as_by_hand():
    """Searchers that do not use the objective dilute the calibration's share."""
    pooled = raw_shares(pool_baselines=True)
    assert (pooled[5, "perplexity"], pooled[7, "perplexity"]) == ((0.48, 0.18), (0.34, 0.41))
    assert (pooled[5, "accuracy"], pooled[7, "accuracy"]) == ((0.22, 0.31), (0.14, 0.29))
    ours = raw_shares()
    assert (ours[5, "perplexity"], ours[7, "perplexity"]) == ((0.65, 0.08), (0.64, 0.09))
    seven = raw_shares(SEVEN)
    assert (seven[5, "perplexity"], seven[7, "perplexity"]) == ((0.71, 0.07), (0.70, 0.10))
    assert (seven[5, "accuracy"], seven[7, "accuracy"]) == ((0.61, 0.02), (0.78, 0.02))


def test_the_papers_searchers_agree_more_under_one_calibration_than_under_two():
    results = committed_study(SEVEN)
    frame = cells_frame(results)
    assert fmean(one.mean for one in agreements(frame, results.n_layers)) == pytest.approx(0.40, abs=0.005)
    assert fmean(one.mean for one in cross_agreements(frame)) == pytest.approx(0.24, abs=0.005)


def test_ga_is_not_the_searcher_to_use(committed: Analysis) -> None:
    (by_loss,) = (one for one in committed.rankings if one.quantity.key == "loss")
    pairs = {(pair.better, pair.worse): pair for pair in by_loss.pairs}
    for better in ("beam", "greedy"):
        assert (pairs[better, "GA"].wins, pairs[better, "GA"].losses) == (8, 0)
        assert pairs[better, "GA"].sign_p == pytest.approx(0.0078, abs=1e-4)
    first = findings(committed)[0]
    assert first.verdict.startswith("Beam has the best mean rank by calibration loss")
    assert "GA (p = 0.008)" in first.verdict.partition("Worse in every setting")[2]


def test_the_main_result_is_found(committed: Analysis) -> None:
    """Perplexity gives far better perplexities than the margin, on whatever data, in both M."""
    (found,) = (
        one.verdict
        for one in findings(committed)
        if one.sure == "clear" and one.verdict.startswith("By average perplexity, perplexity on C4 gives better")
    )
    assert (
        "than margin on Commonsense (659 to 1,100 times) and margin on C4 (65.5 to 296 times), in both cases" in found
    )
    assert any("perplexity on C4 and perplexity on Commonsense" in one.verdict for one in findings(committed))


def test_one_draw_is_warned_of(committed: Analysis) -> None:
    assert any("Every calibration was drawn once" in one.verdict for one in findings(committed))


def test_no_ruined_mask_is_called_as_good(committed: Analysis) -> None:
    assert all(one.cheapest is None for one in committed.by_average)


@pytest.mark.parametrize("results", sorted(RESULTS.parent.iterdir()), ids=lambda path: path.name)
def test_claims_of_the_readme_are_those_of_the_script(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["claims.py", str(results / "cells.csv")])
    runpy.run_path(str(FOLDER / "claims.py"), run_name="__main__")
    assert capsys.readouterr().out == (results / "claims.md").read_text(encoding="utf-8")
