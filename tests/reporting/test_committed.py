"""The committed study: the effect of baselines on shares of variance, and its main findings."""

from __future__ import annotations

import json
import math
import re
import runpy
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
import pytest

from raysearch.reporting.analysis.analyse import Analysis, analyse
from raysearch.reporting.analysis.variance import Split, splits
from raysearch.reporting.findings import findings
from raysearch.studies.result import StudyResult

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / "experiments" / "rethinking_layer_redundancy"
RESULTS = FOLDER / "results" / "four_calibrations"
#: The verdicts of the README, each with the verdict of claims.md.
VERDICTS = {
    "**clear**": "**clear**",
    "not significant": "not told apart",
    "measured": "measured",
    "a description": "a description",
}


@pytest.fixture(scope="module")
def committed() -> Analysis:
    study: Callable[[Path], StudyResult] = runpy.run_path(str(FOLDER / "claims.py"))["study"]
    return analyse(study(RESULTS / "cells.csv"))


def raw_shares(every_split: Sequence[Split]):
    return {
        (split.panel.remove, split.quantity.group): (
            round(split.raw["calibration"], 2),
            round(split.raw["searcher"], 2),
        )
        for split in every_split
    }


def test_shares_of_variance_as_by_hand(committed: Analysis) -> None:
    """Searchers that do not use the objective dilute the calibration's share."""
    pooled = raw_shares(splits(committed.frame.assign(uses_objective=True), committed.averages))
    assert (pooled[5, "perplexity"], pooled[7, "perplexity"]) == ((0.48, 0.18), (0.34, 0.41))
    assert (pooled[5, "accuracy"], pooled[7, "accuracy"]) == ((0.22, 0.31), (0.14, 0.29))
    ours = raw_shares(committed.splits)
    assert (ours[5, "perplexity"], ours[7, "perplexity"]) == ((0.65, 0.08), (0.64, 0.09))


def test_ga_is_not_the_searcher_to_use(committed: Analysis) -> None:
    first = next(finding for finding in findings(committed) if finding.question == "Searchers over all settings")
    assert first.verdict.startswith("Beam has the best mean rank by calibration loss")
    assert "over 4 sets of samples" in first.verdict, "M = 5 and 7 on the same samples are one"
    assert "GA" in first.verdict.partition("Worse by every set")[2]


def test_the_main_result_is_found(committed: Analysis) -> None:
    """Perplexity gives far better perplexities than the margin, on all data, at both M."""
    verdicts = [finding.verdict for finding in findings(committed) if finding.question == "Which calibration?"]
    expected_verdicts = [
        verdict for verdict in verdicts if verdict.startswith("By average perplexity, perplexity on C4 gives better")
    ]
    worse = {"margin on Commonsense": ("1,100 times", "659 times"), "margin on C4": ("296 times", "65.5 times")}
    for (calibration, (five, seven)), verdict in zip(worse.items(), expected_verdicts, strict=True):
        assert f"than {calibration}: significantly at M = 5 ({five}, p = " in verdict
        assert f"; significantly at M = 7 ({seven}, p = " in verdict
    assert any(
        "do not differ significantly: perplexity on C4 and perplexity on Commonsense" in verdict for verdict in verdicts
    )


def test_one_draw_is_warned_of(committed: Analysis) -> None:
    assert any("Every calibration was drawn once" in finding.verdict for finding in findings(committed))


def test_no_ruined_mask_is_called_as_good(committed: Analysis) -> None:
    assert not any(rival.equivalent for comparison in committed.by_average for rival in comparison.rivals)


@pytest.mark.parametrize(
    "results", sorted(path.parent for path in RESULTS.parent.glob("*/cells.csv")), ids=lambda path: path.name
)
def test_claims_of_the_readme_are_those_of_the_script(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["claims.py", str(results / "cells.csv")])
    runpy.run_path(str(FOLDER / "claims.py"), run_name="__main__")
    assert capsys.readouterr().out == (results / "claims.md").read_text(encoding="utf-8")


def test_every_number_in_a_table_of_the_readme_is_one_of_its_claims() -> None:
    """Rounded to the digits that are shown there, and of a claim with the row's verdict, if that has one.

    The study of a table is named by the heading above it.
    """
    sources = {
        "Three draws": ["three_draws/claims.md"],
        "The margin with": ["three_draws/claims.md", "many_items_by_all/claims.md"],
        "At beam's budget": ["equal_budget/claims.md"],
        "Another family": ["second_model/claims.md"],
        "How many items": ["margin_items.md"],
        "How many windows": ["calibration_sizes/claims.md"],
        "Four calibrations": ["four_calibrations/claims.md"],
    }
    offenders = []
    for section in (FOLDER / "README.md").read_text(encoding="utf-8").split("\n## "):
        names = next((names for heading, names in sources.items() if section.startswith(heading)), [])
        lines = [line for name in names for line in (RESULTS.parent / name).read_text(encoding="utf-8").splitlines()]
        body = re.sub(r"^\|.*\n(?=\|-)", "", section, flags=re.MULTILINE)  # without the heads of tables
        for row in re.findall(r"^\|[^|]*(\|.*\d.*)\|$", body, flags=re.MULTILINE) if names else ():
            row_verdicts = [claimed_verdict for verdict, claimed_verdict in VERDICTS.items() if verdict in row]
            matching_lines = [line for line in lines if len(row_verdicts) != 1 or row_verdicts[0] in line]
            claimed = [abs(float(number)) for line in matching_lines for number in _numbers(line)]
            for number in _numbers(row):
                digits = len(number.partition(".")[2])
                if not any(round(claim, digits) == float(number) for claim in claimed):
                    offenders.append((number, row))
    assert not offenders


def _numbers(text: str) -> list[str]:
    """Return the numbers of a text without their signs and without the layers of masks."""
    numbers = re.findall(r"(?<![\w.,{])(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?![\w}])", re.sub(r"\{[\d,]+\}", "", text))
    return [number.replace(",", "") for number in numbers]


def test_items_add_up_to_the_numbers_of_their_masks() -> None:
    folder = RESULTS.parent / "many_items_by_all"
    cells = pd.read_csv(folder / "cells.csv").set_index("removed")
    items = list(pd.read_csv(folder / "items.csv").itertuples())
    assert len(items) == 5 * cells.index.nunique()
    for item_row in items:
        recorded = cells.loc[[item_row.removed], f"assessed.{item_row.metric}"].iloc[0]
        total = sum(json.loads(item_row.items))
        number = math.exp(total) if item_row.metric in ("wikitext2", "c4") else total
        assert number == pytest.approx(recorded, rel=1e-4)


def test_what_another_device_found_is_what_the_documents_say() -> None:
    pairs = runpy.run_path(str(FOLDER / "another_device.py"))["pairs"]()
    document = (FOLDER.parents[1] / "docs" / "gpus.md").read_text(encoding="utf-8")
    assert f"{pairs['same'].sum()} of its {len(pairs)} searches" in document
