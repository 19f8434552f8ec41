"""A search or an assessment that fails stops no other, and is tried again alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from raysearch.errors import EvaluationError
from raysearch.ledger.ledger import opened
from raysearch.search.record import SEARCHES
from raysearch.study import assess as assessing
from raysearch.study.assess import assess_found
from tests.cli.conftest import Run, World
from tests.cli.found import found
from tests.cli.studies import small_study

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_ray")]


def test_a_search_that_fails_stops_no_other_and_is_tried_again_alone(world: World, run: Run, here: Path) -> None:
    words = small_study(world, "searcher=[taylor,one_shot]", "remove=[1]", objective="hidden_cosine")  # no gradients
    words += ["study.retries=0"]
    for tried in range(2):
        outcome = run("study", *words, "--json")
        assert outcome.code == 1
        assert outcome.err.count("this searcher takes gradients") == 2, "as it fails, and at the end"
        assert ("1 search done already" if tried else "2 searches") in outcome.err
        taylor, one_shot = json.loads(outcome.out)["cells"]
        assert (taylor["state"], one_shot["state"]) == ("failed", "finished")
        assert taylor["failure"].startswith("this searcher takes gradients")


def test_an_assessment_that_fails_stops_no_other_model(world: World, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    models = f"{{one: model={world.model}, other: model={world.model} model.attention=eager}}"
    words = small_study(world, "searcher=[one_shot]", "remove=[1]", f"model={models}", model=None)
    words += ["assess.speed.enabled=true", "assess.speed.context_tokens=8", "assess.speed.new_tokens=2"]
    assess = assess_found

    def fails_once(what: Any, *rest: Any) -> Any:
        if what.model.attention != "eager":
            raise EvaluationError("out of luck")
        return assess(what, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(assessing, "assess_found", fails_once)
        outcome = run("study", *words, "--json")
    assert (outcome.code, outcome.err.splitlines()[-1]) == (1, "failed: out of luck")
    assert next(Path("mlruns/reports").glob("*/report.html")).is_file(), "it ends with a report all the same"
    as_far = json.loads(run("report", "latest", "--json").out)
    assert [cell["state"] for cell in as_far["cells"]] == ["finished"] * 2
    assert all(cell["layer_forwards"]["shared"] > 0 for cell in as_far["cells"])
    assert [bool(cell["assessed"]) for cell in as_far["cells"]] == [False, True]
    assert all(cell["assessed"] for cell in found(run("study", *words, "--json"))["cells"])


def test_masks_of_one_draw_are_evaluated_on_the_others_and_contrasts_are_answered(world: World, run: Run) -> None:
    words = small_study(world, "searcher=[one_shot,greedy]", "remove=[2]", "draw=[0,1]")
    outcome = run("study", *words, "study.contrasts=[greedy - one_shot]")
    assert outcome.code == 0, outcome.err
    assert "greedy - one_shot" not in outcome.err
    assert "by held-out calibration loss" in " ".join(outcome.out.split())
    cells = json.loads(run("report", "latest", "--json").out)["cells"]
    assert [(cell["searcher"], cell["draw"]) for cell in cells] == [
        (name, draw) for name in ("one_shot", "greedy") for draw in "01"
    ]
    masks = {(cell["searcher"], cell["draw"]): cell["removed"] for cell in cells}
    for cell in cells:
        other = "1" if cell["draw"] == "0" else "0"
        same = [
            one for one in cells if one["draw"] == other and one["removed"] == masks[cell["searcher"], cell["draw"]]
        ]
        assert cell["held_out_by_draw"] == {other: cell["held_out"]}
        assert all(cell["held_out"] == pytest.approx(one["loss"]) for one in same)
    assert {cell["calibration"] for cell in cells} == {cells[0]["calibration"]}, "another draw is no other calibration"
    with opened(Path("mlruns/ledger.db")) as ledger:
        records = SEARCHES.some(ledger, [cell["search_id"] for cell in cells])
    for cell in cells:  # one search after another runs just what is called shared
        assert records[cell["search_id"]].found.layer_forwards.computed == cell["layer_forwards"]["shared"]
