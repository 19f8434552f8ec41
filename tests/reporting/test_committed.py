"""The committed study: what pooling baselines hides, and the findings that hold."""

from __future__ import annotations

import json
import math
import re
import runpy
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
import pytest

from raysearch.reporting.findings import findings
from raysearch.reporting.stats.analysis import Analysis, analyse
from raysearch.reporting.stats.variance import Split, splits
from raysearch.studies.result import StudyResult

FOLDER = Path(__file__).parents[2] / "experiments" / "rethinking_layer_redundancy"
RESULTS = FOLDER / "results" / "four_calibrations"
VERDICTS = ("**clear**", "not told apart", "measured", "a description")


@pytest.fixture(scope="module")
def committed() -> Analysis:
    study: Callable[[Path], StudyResult] = runpy.run_path(str(FOLDER / "claims.py"))["study"]
    return analyse(study(RESULTS / "cells.csv"))


def raw_shares(found: Sequence[Split]):
    return {
        (one.panel.remove, one.quantity.group): (round(one.raw["calibration"], 2), round(one.raw["searcher"], 2))
        for one in found
    }


def test_shares_of_variance_as_by_hand(committed: Analysis) -> None:
    """Searchers that do not use the objective dilute the calibration's share."""
    pooled = raw_shares(splits(committed.frame.assign(uses_objective=True), committed.averages))
    assert (pooled[5, "perplexity"], pooled[7, "perplexity"]) == ((0.48, 0.18), (0.34, 0.41))
    assert (pooled[5, "accuracy"], pooled[7, "accuracy"]) == ((0.22, 0.31), (0.14, 0.29))
    ours = raw_shares(committed.splits)
    assert (ours[5, "perplexity"], ours[7, "perplexity"]) == ((0.65, 0.08), (0.64, 0.09))


def test_ga_is_not_the_searcher_to_use(committed: Analysis) -> None:
    first = next(one for one in findings(committed) if one.question == "Searchers over all settings")
    assert first.verdict.startswith("Beam has the best mean rank by calibration loss")
    assert "over 4 sets of samples" in first.verdict, "M = 5 and 7 on the same samples are one"
    assert "GA" in first.verdict.partition("Worse by every set")[2]


def test_the_main_result_is_found(committed: Analysis) -> None:
    """Perplexity gives far better perplexities than the margin, on whatever data, in both M."""
    verdicts = [one.verdict for one in findings(committed) if one.question == "Which calibration?"]
    found = [one for one in verdicts if one.startswith("By average perplexity, perplexity on C4 gives better")]
    worse = {"margin on Commonsense": ("1,100 times", "659 times"), "margin on C4": ("296 times", "65.5 times")}
    for (calibration, (five, seven)), verdict in zip(worse.items(), found, strict=True):
        assert f"than {calibration}: significantly at M = 5 ({five}, p = " in verdict
        assert f"; significantly at M = 7 ({seven}, p = " in verdict
    assert any("do not differ significantly: perplexity on C4 and perplexity on Commonsense" in one for one in verdicts)


def test_one_draw_is_warned_of(committed: Analysis) -> None:
    assert any("Every calibration was drawn once" in one.verdict for one in findings(committed))


def test_no_ruined_mask_is_called_as_good(committed: Analysis) -> None:
    assert not any(rival.equivalent for one in committed.by_average for rival in one.rivals)


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
            said = [verdict for verdict in VERDICTS if verdict in row]
            told = [line for line in lines if len(said) != 1 or said[0] in line]
            known = [float(one) for line in told for one in _numbers(line)]
            for one in _numbers(row):
                if not any(round(abs(number), len(one.partition(".")[2])) == float(one) for number in known):
                    offenders.append((one, row))
    assert not offenders


def _numbers(text: str) -> list[str]:
    """The numbers of a text without their signs; those of a mask are none."""
    found = re.findall(r"(?<![\w.,{])(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?![\w}])", re.sub(r"\{[\d,]+\}", "", text))
    return [one.replace(",", "") for one in found]


def test_items_add_up_to_the_numbers_of_their_masks() -> None:
    folder = RESULTS.parent / "many_items_by_all"
    cells = pd.read_csv(folder / "cells.csv").set_index("removed")
    items = list(pd.read_csv(folder / "items.csv").itertuples())
    assert len(items) == 5 * cells.index.nunique()
    for one in items:
        said, added = cells.loc[[one.removed], f"assessed.{one.metric}"].iloc[0], sum(json.loads(one.items))
        assert (math.exp(added) if one.metric in ("wikitext2", "c4") else added) == pytest.approx(said, rel=1e-4)


def test_what_another_device_found_is_what_the_documents_say() -> None:
    found = runpy.run_path(str(FOLDER / "another_device.py"))["pairs"]()
    said = (FOLDER.parents[1] / "docs" / "gpus.md").read_text(encoding="utf-8")
    assert f"{found['same'].sum()} of its {len(found)} searches" in said
