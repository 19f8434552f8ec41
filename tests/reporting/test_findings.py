"""The findings of small, equal and unfinished studies."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest

from raysearch.core.estimate import Estimate, Metric
from raysearch.core.measure import Measure
from raysearch.reporting.analysis.analyse import analyse
from raysearch.reporting.contrast_findings import contrast_findings
from raysearch.reporting.finding import of_all
from raysearch.reporting.findings import findings
from raysearch.reporting.tables.table import present
from raysearch.reporting.tables.verdict import effect_table, verdict_tables
from raysearch.studies.result import CellResult, StudyResult
from tests.reporting.cells import ACCURACY, PERPLEXITY_METRIC, cell, compared, grid, outcome, study
from tests.reporting.synthetic import synthetic_study

MARGIN = Measure("nats of margin per question", "sample", "margin")


def verdicts(results: StudyResult, question: str) -> list[str]:
    return [finding.verdict for finding in findings(analyse(results)) if finding.question == question]


def test_one_seed_of_a_searcher_that_draws_random_numbers_is_warned_of() -> None:
    def seeded(*losses: float) -> StudyResult:
        return study(*(cell("random", outcome(x), seed=i, stochastic=True) for i, x in enumerate(losses)))

    assert "is not measured" in verdicts(seeded(1.0), "Seeds")[0]
    assert verdicts(seeded(1.0, 2.0), "Seeds") == verdicts(study(cell("greedy", outcome())), "Seeds") == []


def test_what_would_be_missed_is_the_least_of_the_rivals_in_its_unit() -> None:
    losses = [
        cell(name, outcome(loss, delta_error=error))
        for name, loss, error in zip("abc", (1.0, 1.001, 1.1), (0.01, 0.01, 3.0), strict=True)
    ]
    comparison = compared(*losses)
    _, second, third = (rival.detectable for rival in comparison.rivals)
    assert second is not None
    assert third is not None
    assert comparison.detectable == second < third
    margins = [
        cell(name, outcome(loss, delta_error=0.2, measure=MARGIN), "questions")
        for name, loss in (("a", -1.0), ("b", -1.1))
    ]
    (verdict,) = verdicts(study(*losses, *margins), "Which searcher?")
    assert "a difference below 0.03962 nats per token or 0.7924 nats of margin per question would be missed" in verdict


def test_each_setting_is_compared_by_held_out_loss_or_else_by_that_on_the_calibration() -> None:
    cells = [
        cell(name, outcome(loss + 0.1 * draw), "drawn", draw=str(draw), held_out=loss + 0.1 * draw)
        for (name, loss), draw in itertools.product((("a", 1.0), ("b", 2.0)), range(3))
    ]
    cells += [cell(name, outcome(loss, delta_error=0.1), "once", draw="0") for name, loss in (("a", 1.0), ("b", 2.0))]
    results = replace(study(*cells), contrasts=["a - b"])
    keys = {contrast.setting.calibration: contrast.quantity.key for contrast in analyse(results).contrasts}
    assert keys == {"drawn": "held_out", "once": "loss"}
    answers = verdicts(results, "Which searcher?")
    assert ["By held-out calibration loss" in answer for answer in answers] == [True, False]
    assert len(contrast_findings(results)) == 2


def test_a_contrast_is_by_calibration_loss_where_one_side_has_no_held_out_loss() -> None:
    mine = [cell("a", outcome(1.0), draw=draw, held_out=1.1, held_out_by_draw={"2": 1.1}) for draw in "01"]
    theirs = [cell("b", outcome(1.5 + 0.01 * int(draw)), draw=draw) for draw in "01"]
    (contrast,) = analyse(replace(study(*mine, *theirs), contrasts=["a - b"])).contrasts
    assert contrast.quantity.key == "loss"
    assert contrast.gain == pytest.approx(0.505)


def test_a_searcher_without_held_out_losses_is_compared_all_the_same() -> None:
    cells = [cell(name, outcome(loss), draw=draw) for name, loss in (("a", 1.0), ("b", 2.0)) for draw in "01"]
    cells = [replace(search, held_out=1.5) if search.searcher == "a" else search for search in cells]
    assert not any("Only one searcher" in verdict for verdict in verdicts(study(*cells), "Which searcher?"))


def test_ruined_models_are_counted() -> None:
    repeats = Metric("bleu", "Self-BLEU", "degeneration", "%", higher_is_better=False)
    cells = [
        cell(name, outcome(removed=removed, assessed=estimates))
        for name, removed, perplexity in (("a", (1, 2), 20.0), ("b", (3, 4), math.inf), ("c", (3, 4), math.inf))
        for estimates in [{"ppl": Estimate(perplexity), "bleu": Estimate(math.nan)}]
    ]
    cells.append(cell("d", outcome()))
    results = study(*cells, metrics=(PERPLEXITY_METRIC, repeats))
    assert verdicts(results, "Completeness")[0].startswith("1 of 2 assessed masks ruins the model")


def test_equal_losses_are_those_of_one_mask_or_neither_better_nor_worse() -> None:
    same = [cell(name, outcome(delta_error=0.1), error_to_best=0.0) for name in "ab"]
    different = [cell(name, outcome(delta_error=0.1, removed=(i, 9))) for i, name in enumerate("ab")]
    (first,), (second,) = (
        contrast_findings(replace(study(*cells), contrasts=["a - b"])) for cells in (same, different)
    )
    assert first.verdict == "a and b found the same by calibration loss (c, m, M = 2) (one draw, one seed)."
    assert first.sure == "measured"
    assert "a is neither better nor worse ± 0.2772 nats per token" in second.verdict


def test_searchers_that_are_equal_in_every_set_do_not_differ_significantly() -> None:
    every = study(*(cell(name, outcome(), calibration) for name in "abc" for calibration in "xyz"))
    (verdict,) = verdicts(every, "Searchers over all settings")
    assert "2 of 3 over 3 sets of samples, but no searcher is significantly worse (Friedman p = 1.00)" in verdict


def test_equal_shares_are_as_much() -> None:
    values = {("x", "a"): [50.0], ("x", "b"): [51.0], ("y", "a"): [51.0], ("y", "b"): [50.0]}
    (shares,) = verdicts(grid(values), "Calibration or searcher")
    assert "varies as much with the calibration as with the searcher: 0 % against 0 %" in shares


def test_rankings_without_any_correlation_are_counted_too() -> None:
    cells = [
        cell(name, outcome(loss, removed=(0, i + 1), assessed={"acc": Estimate(value)}))
        for i, (name, loss, value) in enumerate(zip("abcd", (1, 2, 3, 4), (2.0, 4.0, 1.0, 3.0), strict=True))
    ]
    (verdict,) = verdicts(study(*cells, metrics=(ACCURACY,)), "Does a better loss help")
    assert verdict.endswith("range +0.00 to +0.00, none but zero of 1.")


def test_a_stopped_search_is_one_of_those_that_findings_are_about() -> None:
    stopped = replace(cell("b", outcome(2.0, removed=(3, 4))), state="stopped")
    assert verdicts(study(cell("a", outcome()), stopped), "Completeness") == []
    (missing,) = verdicts(study(cell("a", outcome()), cell("b", None)), "Completeness")
    assert "1 of 2 searches is not finished" in missing


def test_a_study_of_which_each_searcher_has_done_another_draw_has_findings() -> None:
    cells = [cell(name, outcome(), draw=draw) for name, draw in zip("ab", "01", strict=True)]
    assert findings(analyse(study(*cells)))


def paired(levels: Mapping[str, tuple[float, ...]], calibration: str, remove: int) -> list[CellResult]:
    """Return searches from the losses of each searcher's draws; the perplexities are exp(loss)."""
    return [
        cell(
            searcher,
            outcome(loss, removed=tuple(range(remove)), assessed={"ppl": Estimate(math.exp(loss))}),
            calibration,
            remove,
            draw=str(draw),
        )
        for searcher, losses in levels.items()
        for draw, loss in enumerate(losses)
    ]


NOISY = {"a": (1.0, 1.2, 1.1), "b": (1.1, 1.0, 1.3)}
FAR = {"a": (1.0, 1.2, 1.1), "b": (1.5, 1.71, 1.6)}
GRIDS = {
    "nowhere": study(*paired(NOISY, "x", 2), *paired(NOISY, "x", 3), metrics=(PERPLEXITY_METRIC,)),
    "in part": study(*paired(NOISY, "x", 2), *paired(FAR, "x", 3), metrics=(PERPLEXITY_METRIC,)),
    "everywhere": study(*paired(FAR, "x", 2), *paired(FAR, "x", 3), metrics=(PERPLEXITY_METRIC,)),
    "two calibrations": study(
        *(
            search
            for name, part in (("x", NOISY), ("y", FAR))
            for size in (2, 3)
            for search in paired(part, name, size)
        ),
        metrics=(PERPLEXITY_METRIC,),
    ),
    "all kinds": synthetic_study(),
    "no flaws": synthetic_study(flaws=False),
    "nothing assessed": synthetic_study(assessed=False),
}


@pytest.mark.parametrize("name", GRIDS)
def test_findings_about_searchers_are_the_rows_of_the_tables(name: str) -> None:
    """A finding names exactly the rivals that a row has as worse, with their p; its certainty follows from the rows."""
    analysis = analyse(GRIDS[name])
    every_finding = findings(analysis)
    by_table = {
        table.name: table for table in present(*verdict_tables([*analysis.by_fresh_loss, *analysis.by_average]))
    }
    assert by_table
    for quantity in dict.fromkeys(
        comparison.quantity for comparison in (*analysis.by_fresh_loss, *analysis.by_average)
    ):
        table = by_table[f"verdicts_{quantity.key}"]
        places = {column.title: place for place, column in enumerate(table.columns)}
        rows = [{title: row[place].text for title, place in places.items()} for row in table.rows]
        decided = [row for row in rows if row["How sure"] not in ("cannot tell", "one searcher")]
        about = [
            finding
            for finding in every_finding
            if finding.question == "Which searcher?" and finding.verdict.startswith(f"By {quantity.title},")
        ]
        assert len(about) == bool(decided)
        if not decided:
            continue
        worse = [
            pair
            for row in decided
            for pair in re.findall(r"(\w[^()]*) \((p [=<] [\d.]+)\)", row["Significantly worse"])
        ]
        clear = sum(row["Significantly worse"] != "none" for row in decided)
        assert about[0].sure == (
            "not significant" if not clear else "clear" if clear == len(decided) else "clear in part"
        )
        assert ("No searcher is significantly worse" in about[0].verdict) == (not worse)
        for searcher, times in Counter(searcher.strip(", ") for searcher, _ in worse).items():
            assert f"{searcher} {of_all(times, len(decided), 'setting')}" in about[0].verdict
        named = re.findall(r"p [=<] [\d.]+\d", about[0].verdict)
        assert Counter(named) <= Counter(p for _, p in worse)


def test_findings_about_calibrations_are_the_rows_of_the_table() -> None:
    better = {"a": (1.0, 1.02, 1.01), "b": (1.0, 1.01, 1.02)}
    worse = {name: tuple(loss + 0.5 for loss in losses) for name, losses in better.items()}
    noisy = dict.fromkeys("ab", (1.0, 1.6, 1.3))
    cells = [
        *(*paired(better, "keep", 3), *paired(worse, "prose", 3)),
        *(*paired(better, "keep", 2), *paired(noisy, "prose", 2)),
    ]
    analysis = analyse(study(*cells, metrics=(PERPLEXITY_METRIC,)))
    (finding,) = (candidate for candidate in findings(analysis) if candidate.question == "Which calibration?")
    table = effect_table(analysis.effects)
    assert table is not None
    assert finding.sure == "clear in part"
    assert finding.leads
    places = {column.title: place for place, column in enumerate(table.columns)}
    rows = {row[places["M"]].text: {title: row[place] for title, place in places.items()} for row in table.rows}
    assert [rows[size]["Better calibration"].best for size in "23"] == [False, True]
    two, three = (f"({rows[size]['Better by'].text}, {rows[size]['p'].text})" for size in "23")
    assert f"keep gives better checkpoints than prose: significantly at M = 3 {three}; " in finding.verdict
    assert f"in the same direction at M = 2 {two}." in finding.verdict


def test_noise_that_is_not_known_of_one_searcher_makes_none_worse() -> None:
    levels = (("a", 1.0, False), ("b", 1.1, False), ("random", 1.2, True))
    compared_all = compared(
        *(cell(name, outcome(loss, delta_error=0.2), stochastic=random) for name, loss, random in levels)
    )
    assert [rival.tied for rival in compared_all.rivals] == [True, True, None]
    assert compared_all.verdict == "cannot tell"
