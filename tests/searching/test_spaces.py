"""Searches in every space: their masks are stored, read, counted and compared by what ``remove=`` counts."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from raysearch.configuration import build
from raysearch.core.json import from_json, to_json
from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.core.site import Sites
from raysearch.core.space import LAYERS, SPACES
from raysearch.core.trial import joint_removals
from raysearch.ledger.ledger import Ledger
from raysearch.searching.gap import gap_of
from raysearch.searching.observer import Observer, Tracker
from raysearch.searching.result import SearchResult, in_brief
from raysearch.searching.run import run_search
from raysearch.searching.search_record import SEARCHES
from raysearch.searching.separation import Separation
from raysearch.searching.speeds import masks_of_kinds, speed_of
from tests.cli.conftest import World
from tests.tracking.simulated import greedy_search


def search(world: World, **changes: Any) -> SearchResult:
    """Run a search in the working folder."""
    return run_search(build.search_spec(world.search(**changes)), Observer(), Tracker())


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_a_search_counts_what_its_space_removes(space: Any, world: World, cwd: Path) -> None:
    result = search(world, searcher="greedy", space=space.name, remove=2, screening="off")
    assert result.mask.n_halves == 2 * space.n_halves
    assert [*result.best_by_size] == [1, 2]
    assert (result.n_remove, result.n_removed, result.space) == (2, 2, space)
    assert result.removal_order is not None
    assert Mask.of(*result.removal_order) == result.mask
    assert from_json(SearchResult, to_json(result)) == result
    assert [entry["n_removed"] for entry in in_brief(result)["path"]] == [1, 2]
    assert space.plural in result._repr_html_()
    assert [*result.to_frame()["n_removed"]][:2] == [0, 1]
    assert result.separation is not None
    assert f"other masks of 2 {space.plural}" in str(result.separation)
    for name, figure in result.plot.files():
        figure.savefig(cwd / name)
    (joint, *_) = joint_removals(result.trials, result.space_sites, space)
    assert joint.size == 2


def test_masks_of_layers_are_in_the_ledger_for_every_space(world: World, cwd: Path) -> None:
    layers = search(world, searcher="one_shot", remove=1, screening="off")
    pairs = search(world, searcher="one_shot", space="pairs", remove=1, screening="off")
    losses = {trial.mask: trial.loss for trial in pairs.trials}
    assert all(losses[trial.mask] == trial.loss for trial in layers.trials)
    assert pairs.loss <= layers.loss
    assert pairs.work.evaluations.cached == layers.work.evaluations.requested


def test_the_mask_of_a_search_is_ranked_among_all_of_its_space(world: World, cwd: Path) -> None:
    result = search(world, searcher="exhaustive", space="pairs", remove=2, screening="off")
    n_layers = result.n_layers
    with closing(Ledger(cwd / "mlruns" / "ledger.db")) as ledger:
        gap = gap_of(SEARCHES.find(ledger, result.search_id), ledger)
    n_masks = Problem.create(n_layers, 2, space=SPACES["pairs"]).n_solutions
    assert (gap.n_masks, gap.rank, gap.best, gap.n_removed) == (n_masks, 1, result.mask, 2)


def test_a_record_without_a_space_is_of_layers() -> None:
    record = json.loads(to_json(greedy_search()))
    del record["space"]
    assert from_json(SearchResult, json.dumps(record)) == greedy_search()
    assert from_json(SearchResult, json.dumps(record)).space is LAYERS


def test_sentences_name_the_pair_or_the_half() -> None:
    def text(reference: Mask, space: str) -> str:
        return str(Separation(reference, True, 5, 2, 8, None, None, space=SPACES[space]))

    assert "costlier than pair {16m,17a}, the costliest" in text(Mask.of("16m", "17a"), "pairs")
    assert "costlier than pair 17, the costliest" in text(Mask.of(17), "pairs")
    assert "costlier than attention 17a, the costliest" in text(Mask.of("17a"), "attention")
    assert text(Mask.of("17a"), "halves").endswith("2 of the 5 halves that stay")
    assert text(Mask.of(17), "layers").endswith("2 of the 5 layers that stay")


SITES = Sites.of_layers([100] * 6, attention_parameters=[25] * 6)
HALF_S = {"attention": 0.1, "mlp": 0.2}


def summary(mask: Mask) -> dict[str, Any]:
    """The numbers of a mask, if an MLP takes twice as long as an attention."""

    def numbers(removed: Mask) -> dict[str, Any]:
        seconds = 4.0 - sum(HALF_S[half.part] for half in removed.all_halves)
        return {"decode_s": [seconds], "latency_s": [seconds], "peak_memory_bytes": seconds * 1e9}

    return {**numbers(mask), "dense": numbers(Mask())}


@pytest.mark.parametrize(
    ("space", "measured"),
    [
        ("pairs", [Mask.of(3, 4, 5)]),
        ("attention", [Mask.of("3a", "4a", "5a")]),
        ("halves", [Mask.of("3a", "4a", "5a"), Mask.of("3m", "4m", "5m")]),
    ],
)
def test_speeds_of_halves_add_up(space: str, measured: list[Mask]) -> None:
    problem = Problem.of_model(SITES, 2, space=SPACES[space])
    assert [*map(problem.sites.mask_of, masks_of_kinds(problem.sites, problem.free))] == measured
    summaries = {mask: summary(mask) for mask in measured}
    for indices in problem.solutions():
        mask = problem.sites.mask_of(indices)
        speed = speed_of(mask, problem.sites, summaries)
        assert speed is not None
        assert speed.speedup == pytest.approx(4.0 / summary(mask)["decode_s"][0])
        assert speed.memory_bytes == pytest.approx(summary(mask)["peak_memory_bytes"])
    if space == "attention":
        assert speed_of(Mask.of("0m"), SPACES["halves"].select(SITES), summaries) is None, "no MLP was measured"


def test_a_pair_is_as_fast_as_a_layer() -> None:
    summaries = {Mask.of(0, 4): summary(Mask.of(0, 4))}
    speed = speed_of(Mask.of("1m", "2a", "4m", "5a"), SPACES["pairs"].select(SITES), summaries)
    assert speed is not None
    assert speed.speedup == pytest.approx(4.0 / 3.4)
