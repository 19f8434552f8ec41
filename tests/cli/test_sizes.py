"""Several numbers of layers in one search, the best mask of each, and its rank among all masks of its size."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pandas as pd

import raysearch
from raysearch.searching.result import SearchResult
from tests.api.test_functions import settings
from tests.cli.answers import json_answer
from tests.cli.conftest import Run, World
from tests.cli.test_search import table
from tests.sentences import Sentences


def cells(text: str) -> list[list[str]]:
    """Return the rows of the tables in a text, without padding."""
    return [[cell.strip() for cell in row] for row in table(text)]


def test_a_range_holds_what_searches_for_each_size_find(run: Run, world: World) -> None:
    result = json_answer(run("search", *world.search(remove="1..3"), "--json"))
    assert result["search_id"].startswith("greedy-m1-3-")
    assert [entry["n_removed"] for entry in result["path"]] == [1, 2, 3]
    assert result["removed"] == result["path"][-1]["removed"]
    for entry in result["path"]:
        separate = json_answer(run("search", *world.search(remove=entry["n_removed"]), "--json"))
        assert (separate["removed"], separate["loss"]) == (entry["removed"], entry["loss"])
        assert separate["evaluations"]["computed"] == 0
        assert separate["perplexity"] == entry["perplexity"]
    resumed = json_answer(run("resume", result["search_id"], "--json"))
    assert resumed["path"] == result["path"]
    assert resumed["evaluations"]["computed"] == 0


def test_people_see_the_best_of_each_size(run: Run, world: World) -> None:
    outcome = run("search", *world.search(remove="1..2"))
    assert "remove 1..2 of 5 layers" in outcome.err
    result = json_answer(run("show", "latest", "--json"))["result"]
    rows = [
        [str(e["n_removed"]), f"{{{','.join(map(str, e['removed']))}}}", f"{e['loss']:.4f}", f"{e['perplexity']:.2f}"]
        for e in result["path"]
    ]
    assert "Best by number of layers removed" in outcome.out
    for shown in (outcome, run("show", "latest")):
        assert [row for row in cells(shown.out) if row in rows] == rows
    assert "Best by number" not in run("search", *world.search()).out, "two sizes are on the way to any two layers"
    assert "Best by number" in run("search", *world.search(remove=3)).out


def test_a_dry_run_forecasts_a_range(run: Run, cwd: Path, world: World, sentences: Sentences) -> None:
    sentences.refused_command(run("search", *world.search(remove="1..3", searcher="one_shot"), "--dry-run"))
    assert run("search", *world.search(remove="1..3"), "--dry-run").out.startswith("12 masks in 3 rounds")
    assert not list(cwd.iterdir())


def shown_in_a_notebook(result: SearchResult) -> None:
    loaded = raysearch.open().search()
    all_searches = raysearch.open().to_frame()
    trials = result.to_frame()
    assert loaded.result.trials == result.trials
    assert loaded._repr_html_() == result._repr_html_()
    assert list(all_searches.index) == [result.search_id]
    assert all_searches.loss[result.search_id] == result.loss
    assert all_searches.loc[result.search_id, ["searcher", "objective", "data"]].to_list() == [
        result.choices[group] for group in ("searcher", "objective", "data")
    ]
    assert list(trials["mask"]) == [str(trial.mask) for trial in result.trials]
    assert trials.loc[0, "perplexity"] == result.dense_readout
    assert trials.loss.min() <= result.loss
    (table,) = pd.read_html(io.StringIO(result._repr_html_()))
    assert list(table["removed"]) == ["{}", *(str(trial.mask) for trial in result.path)]


def test_a_range_in_python(world: World, cwd: Path) -> None:
    result = raysearch.search("data=file", remove="1..2", tracking="none", **settings(world, "mlruns")).result
    shown_in_a_notebook(result)
    assert len(result.removed) == 2
    assert [len(trial.mask) for trial in result.path] == [1, 2]
    assert result.path[-1].mask == result.mask


def test_any_size_can_be_exported(run: Run, cwd: Path, world: World, sentences: Sentences) -> None:
    result = json_answer(run("search", *world.search(remove=3), "--json"))
    written = json_answer(run("export", "latest", "--out", "two", "--remove", 2, "--json"))
    assert written["n_layers"] == 3
    card = (cwd / "two" / "README.md").read_text()
    assert "- Searcher: greedy(width=1)\n" in card.replace("\\", "")
    assert f"{result['path'][1]['loss']:.4f}" in card
    assert f"{result['loss']:.4f}" not in card
    refused = run("export", "latest", "--out", "four", "--remove", 4)
    assert refused.out == ""
    sentences.refused_command(refused)
    assert not (cwd / "four").exists()


def test_a_found_mask_is_ranked_once_all_are_known(run: Run, world: World, sentences: Sentences) -> None:
    changes = {"protect": "[0]", "searcher": "random", "searcher.k": 2}
    result = json_answer(run("search", *world.search(**changes), "--json"))
    refused = run("show", "latest", "--gap")
    assert refused.out == ""
    sentences.refused_command(refused)
    best = json_answer(run("search", *world.search(protect="[0]", searcher="exhaustive"), "--json"))
    losses = [
        t["loss"] for t in json_answer(run("show", "latest", "--json"))["result"]["trials"] if len(t["mask"]) == 2
    ]
    gap = json_answer(run("show", result["search_id"], "--gap", "--json"))["gap"]
    assert gap["rank"] == 1 + sum(loss < result["loss"] for loss in losses)
    assert gap["n_masks"] == len(losses) == 6
    assert (gap["removed"], gap["best"], gap["best_loss"]) == (result["removed"], best["removed"], best["loss"])
    assert gap["gap"] == result["loss"] - best["loss"]
    row = ["2", f"{{{','.join(map(str, gap['removed']))}}}", str(gap["rank"]), "6", f"{gap['percentile']:.4g}"]
    assert row in [cells[:5] for cells in cells(run("show", result["search_id"], "--gap").out)]


def test_what_a_searcher_remarks_is_kept_and_shown(run: Run, world: World) -> None:
    outcome = run("search", *world.search(searcher="block_influence"))
    assert outcome.code == 0
    assert "(the searcher itself " in outcome.out
    assert " a mask requested)" in outcome.out
    record = json.loads(run("show", "latest", "--json").out)["result"]
    (name,) = record["remarks"]
    assert name == "block_influence"
    assert len(record["remarks"][name]) == 5
    rows = [[str(layer), f"{value:.4g}"] for layer, value in enumerate(record["remarks"][name])]
    assert [row for row in cells(run("show", "latest").out) if len(row) == 2 and row[0].isdigit()] == rows
    assert name not in outcome.out.replace(record["search_id"], ""), "a list is for show"
