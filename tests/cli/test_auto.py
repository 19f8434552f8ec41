"""As many layers as a budget allows: where the search ends, what it recommends, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

import raysearch
from raysearch.assessment import speed
from raysearch.core.mask import Mask
from raysearch.errors import UserError
from raysearch.searching import recommend
from raysearch.searching.recommend import facts_of
from raysearch.searching.recommendation import Budget, Speed
from tests.cli.answers import json_answer
from tests.cli.conftest import Run, World
from tests.sentences import Sentences

QUICK = {"speed.context_tokens": 8, "speed.new_tokens": 2, "speed.repeats": 2}


def overrides(world: World, **changes: object) -> list[str]:
    """Return the overrides of a quick search by budget."""
    return world.search(remove="auto", **QUICK, **changes)


@pytest.fixture
def sizes(run: Run, world: World) -> Mapping[int, Mapping[str, Any]]:
    """Return the results of a search of all sizes, by size; each further layer makes the loss worse."""
    result = json_answer(run("search", *world.search(remove="1..4", objective="kl"), "--json"))
    errors = result["delta_errors"]
    return {entry["n_removed"]: {**entry, "error": errors[str(entry["n_removed"])]} for entry in result["path"]}


def test_the_largest_number_within_a_loss_is_found(
    run: Run,
    cwd: Path,
    tables: None,
    world: World,
    sizes: Mapping[int, Mapping[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decode_s = cycle((2.0, 1.0))  # of the dense model, then of a mask
    monkeypatch.setattr(speed, "_time", lambda *_: speed._Timing(prefill_s=1.0, decode_s=next(decode_s)))
    bounds = [sizes[size]["loss"] + 1.6449 * sizes[size]["error"] for size in range(1, 5)]
    assert bounds == sorted(bounds)
    until = 3
    most = (bounds[1] + bounds[2]) / 2
    shortfall = (
        "misses budget.loss" if sizes[until]["loss"] > most else "keeps to budget.loss, but not beyond the error"
    )
    recorded = {"objective": "kl", "tracking": "mlflow"}
    outcome = run("search", *overrides(world, budget__loss=repr(most), **recorded), "--json")
    result = json_answer(outcome)
    advice = result["recommendation"]
    assert result["search_id"].startswith("greedy-auto-")
    assert "remove as many of 5 layers as the budget allows" in outcome.err
    assert result["n_remove"] == advice["n_removed"] == until - 1
    assert result["removed"] == advice["removed"]
    assert result["removed"] == sizes[until - 1]["removed"]
    assert result["loss"] == sizes[until - 1]["loss"]
    assert [size["n_removed"] for size in advice["sizes"]] == list(range(1, until + 1)), (
        "it ends after the first beyond"
    )
    assert [size["speed"]["speedup"] for size in advice["sizes"]] == pytest.approx(
        [1 / (1 - size / 6) for size in range(1, until + 1)]
    ), "one mask was measured, of three of the five equal layers, and it takes half of the time"
    assert all(size["delta_error"] > 0 for size in advice["sizes"])
    assert all(isinstance(size["speed"]["memory"], float) for size in advice["sizes"]), (
        "of so small a model it is noise"
    )
    assert f"with {until} it {shortfall}" in advice["reason"]
    later_advice = json_answer(run("recommend", "latest", "--json"))
    assert later_advice["sizes"] == advice["sizes"], "the record has all that the search knew"
    recorded_as = MlflowClient(f"sqlite:///{cwd / 'mlruns/mlflow.db'}").get_run(result["mlflow_run_id"]).data.params
    assert recorded_as["n_remove"] == str(until - 1), "not the most that may go"
    (plot,) = cwd.glob(f"mlruns/reports/{result['search_id']}/knee.png")
    assert plot.stat().st_size > 1000
    assert len([*cwd.glob("mlruns/**/knee.png")]) == 2, "one is MLflow's"

    resumed = json_answer(run("resume", result["search_id"], "--json"))
    assert resumed["evaluations"]["computed"] == 0
    assert resumed["recommendation"] == advice
    shown = run("recommend", "latest").out
    assert "recommended" in shown
    assert "misses loss" in shown or "loss within error" in shown
    assert raysearch.open().search().recommend("budget.loss=9").sizes[0].speed is not None
    exported = json_answer(run("export", "latest", "--out", "pruned", "--json"))
    assert exported["n_layers"] == 5 - result["n_remove"]


def test_another_budget_or_searcher_is_another_search(cwd: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(cwd / "home"))
    ids = set()
    store = "~/mlruns"
    for searcher, budget in (("greedy", {"readout": "1000%"}), ("greedy", {"loss": 9}), ("beam", {"loss": 9})):
        search = raysearch.search(
            *overrides(world, searcher=searcher, store=store), budget=budget, speed={"enabled": False}
        )
        result = search.result
        assert result.recommendation is not None, "this model loses little"
        assert result.n_remove == 4, "this model loses little"
        assert all(size.speed is None for size in result.recommendation.sizes)
        assert "largest number that was searched" in search.recommend().reason
        ids.add(result.search_id)
    assert len(ids) == 3 == len([*cwd.glob("home/mlruns/reports/*/knee.png")])


def test_gains_end_a_search_as_soon_as_a_mask_has_them(run: Run, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # Compared with it, the weights are small.
    monkeypatch.setattr("raysearch.assessment.speed.PeakMemory.growth", lambda _: 0)
    whole = json_answer(run("search", *overrides(world, budget__readout="1000%"), "--json"))
    memory = {size["n_removed"]: size["speed"]["memory"] for size in whole["recommendation"]["sizes"]}
    assert sorted(memory.values(), reverse=True) == [*memory.values()]
    assert len(memory) == 4
    result = json_answer(run("search", *overrides(world, budget__memory=repr(memory[2])), "--json"))
    assert result["n_remove"] == len(result["path"]) == 2, "the speeds of the first search are in the ledger"
    assert "with 1 it misses budget.memory" in result["recommendation"]["reason"]
    limits = {"budget.memory": repr(memory[2]), "budget.readout": "1000%"}
    assert json_answer(run("search", *overrides(world, **limits), "--json"))["n_remove"] == 4


def test_a_budget_of_the_kv_cache_times_nothing(run: Run, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "_time", lambda *_: pytest.fail("it is timed"))
    result = json_answer(run("search", *overrides(world, budget__kv_memory="-40%"), "--json"))
    sizes = result["recommendation"]["sizes"]
    assert result["n_remove"] == len(sizes) == 2
    assert [size["kv_memory"]["change"] for size in sizes] == pytest.approx([-0.2, -0.4])
    assert sizes[1]["kv_memory"]["size_bytes"] == 3 * 2 * 2 * 8 * 4 * (8 + 2), "of as many tokens as speed has"
    batch = {"speed.batch": 3, "speed.enabled": False}
    result = json_answer(run("search", *overrides(world, budget__kv_memory="-40%", **batch), "--json"))
    assert result["recommendation"]["sizes"][1]["kv_memory"]["size_bytes"] == 3 * sizes[1]["kv_memory"]["size_bytes"]


def test_a_request_within_a_time(run: Run, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    times = cycle((speed._Timing(prefill_s=0.04, decode_s=0.06), speed._Timing(prefill_s=0.02, decode_s=0.02)))
    monkeypatch.setattr(speed, "_time", lambda *_: next(times))
    result = json_answer(run("search", *overrides(world, budget__latency_ms=65), "--json"))
    sizes = result["recommendation"]["sizes"]
    assert [size["speed"]["latency_ms"] for size in sizes] == pytest.approx([80, 60]), "three layers take 60 ms"
    assert [size["speed"]["dense_latency_ms"] for size in sizes] == pytest.approx([100, 100])
    assert [size["misses"] for size in sizes] == [["latency_ms"], []]


def test_a_budget_that_no_mask_meets_is_refused_in_a_sentence(run: Run, world: World, sentences: Sentences) -> None:
    sentences.hide(re.compile(r"[\d.]+ ± [\d.]+ times as fast"), "speed")
    sentences.hide(re.compile(r"(?<=reaches only: )memory -[\d.]+%"), "memory")
    sentences.hide(re.compile(r"[\d.]+( ± [\d.]+)? ms(?= a request|, so)"), "time")
    for changed in (
        "budget.loss=-5",
        "budget.speedup=2000",  # above what a measurement that is noise can give
        "budget.memory=-99.9%",
        "budget.kv_memory=-99.9%",
        "budget.kv_memory=1GB",
        "budget.latency_ms=0.0001",
        "budget.latency_ms=1e9",
        "",
        "budget.loss=1 searcher=one_shot",
        "budget.speedup=2 speed.enabled=false",
        "budget.loss=1 speed.context_tokens=64",
        "budget.loss=1 speed.repeats=0",
    ):
        sentences.refused_command(run("search", *overrides(world), *changed.split()), changed or "nothing")
    sentences.refused_command(run("search", *world.search(remove=2), "budget.loss=1"), "remove=2 budget.loss=1")
    outcome = run("study", *world.search(remove=None), "study.grid.remove=[auto]", "budget.loss=1", "--dry-run")
    sentences.refused_command(outcome, "study.grid.remove=[auto]")
    with sentences.refused(UserError):
        raysearch.search(*overrides(world, objective="kl", budget__readout="10%"))


def test_a_dry_run_gives_bounds(run: Run, cwd: Path, world: World) -> None:
    line = run("search", *overrides(world, budget__loss=0.1), "--dry-run").out
    assert line.startswith("at most 14 masks in 4 rounds, as far as the budget allows: ")
    expected = json.loads(run("search", *overrides(world, budget__loss=0.1), "--dry-run", "--json").out)
    assert [costs["masks"] for costs in expected["rounds"]] == [5, 4, 3, 2]
    assert expected["by_budget"]
    assert not list(cwd.iterdir())


def test_a_worse_readout_is_shown_with_its_error() -> None:
    from raysearch.core.measure import PERPLEXITY

    budget = Budget(loss=0.2, readout=0.1, speedup=1.2, memory=-0.1)
    facts = facts_of(Mask.of(1), 1.1, 1.0, PERPLEXITY, budget, error=0.01, speed=Speed(1.1, 0.02, -0.2, 8e8))
    assert facts.readout_change == pytest.approx(0.10517, abs=1e-5)
    assert facts.readout_error == pytest.approx(0.01 * 1.10517, rel=1e-3)
    assert (facts.misses, facts.unsure, facts.unknown) == (("readout", "speedup"), (), ())
    assert facts_of(Mask.of(1), 1.1, 1.0, PERPLEXITY, budget).unknown == ("speedup", "memory")
    better = facts_of(Mask.of(1), 0.9, 1.0, PERPLEXITY, Budget(readout=0.1))
    assert recommend._facts(better, Budget(readout=0.1), PERPLEXITY).endswith("perplexity is 9.5% better")


def test_what_keeps_to_a_budget_within_its_error_alone_is_not_recommended() -> None:
    from raysearch.core.measure import PERPLEXITY

    def unsure(budget: Budget, *, error: float | None = None, speed: Speed | None = None) -> tuple[str, ...]:
        facts = facts_of(Mask.of(1), 1.1, 1.0, PERPLEXITY, budget, error=error, speed=speed)
        assert not facts.misses
        assert facts.keeps is not bool(facts.unsure)
        return facts.unsure

    assert unsure(Budget(loss=0.12), error=0.02) == ("loss",)
    assert not unsure(Budget(loss=0.14), error=0.02)
    assert unsure(Budget(readout=0.12), error=0.02) == ("readout",)
    assert not unsure(Budget(readout=0.15), error=0.02)
    noisy = Speed(1.32, 0.33, -0.2, 8e8)
    exact = Speed(1.32, 0.05, -0.2, 8e8)
    assert unsure(Budget(speedup=1.2), speed=noisy) == ("speedup",)
    assert not unsure(Budget(speedup=1.2), speed=exact)
    assert not unsure(Budget(loss=0.1001)), "memory is exact"
    assert not unsure(Budget(memory=-0.2), speed=noisy), "memory is exact"
