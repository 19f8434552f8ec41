"""How many layers to remove within a budget, from the ledger alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import raysearch
from raysearch.core.mask import Mask
from raysearch.errors import UserError
from raysearch.searching import recommend
from raysearch.searching.recommend import facts_of
from raysearch.searching.recommendation import Budget
from raysearch.text.numbers import size as size_text
from tests.cli.answers import json_answer
from tests.cli.conftest import Run, World
from tests.models.conftest import write_llama
from tests.sentences import Sentences

SIZES = 1, 2, 3


@pytest.fixture
def searched(run: Run, world: World) -> Mapping[int, Mapping[str, Any]]:
    """Return the results of a search of three sizes, by size; the current folder has its ledger."""
    result = json_answer(run("search", *world.search(remove="1..3"), "--json"))
    errors = {int(size): error for size, error in result["delta_errors"].items()}
    dense = {"loss": result["dense_loss"]}
    return {
        0: dense,
        **{entry["n_removed"]: {**entry, "error": errors[entry["n_removed"]]} for entry in result["path"]},
    }


def test_a_loss_decides(run: Run, world: World, sentences: Sentences) -> None:
    # Every layer costs something by the KL divergence.
    result = json_answer(run("search", *world.search(remove="1..3", objective="kl"), "--json"))
    path = {entry["n_removed"]: entry for entry in result["path"]}
    rises = {size: path[size]["loss"] - result["dense_loss"] for size in SIZES}
    bounds = {size: rises[size] + 1.644854 * result["delta_errors"][str(size)] for size in SIZES}
    for most in (max(bounds.values()) + 1e-4, min(bounds.values()) + 1e-4):
        within = [size for size in SIZES if bounds[size] <= most]
        misses = [["loss"] if rises[size] > most else [] for size in SIZES]
        unsure = [["loss"] if rises[size] <= most < bounds[size] else [] for size in SIZES]
        advice = json_answer(run("recommend", "latest", f"budget.loss={most!r}", "--json"))
        assert advice["n_removed"] == max(within)
        assert advice["removed"] == path[max(within)]["removed"]
        assert [size["misses"] for size in advice["sizes"]] == misses
        assert [size["unsure"] for size in advice["sizes"]] == unsure
        assert advice["confidence"] == 0.95
    sentences.refused_command(run("recommend", "latest", "budget.loss=0"))


def test_a_mask_that_cannot_become_gguf_is_reported(run: Run, world: World, cwd: Path) -> None:
    assert run("search", *world.search(model=write_llama(cwd / "x.gguf", 5), remove="1..2")).code == 0
    write_llama(cwd / "x.gguf", 5, architecture="smollm3")  # which is not read, but has a rule of places
    out = run("recommend", "latest", "budget.loss=1000").out
    (row,) = (line for line in out.splitlines() if "recommended" in line)
    assert " *" in row
    assert "* export --gguf refuses {" in out
    assert "follows from their places, one in 4" in out


def test_a_readout_decides(
    run: Run, world: World, searched: Mapping[int, Mapping[str, Any]], sentences: Sentences
) -> None:
    advice = json_answer(run("recommend", "latest", "budget.loss=1000", "--json"))
    for size in advice["sizes"]:
        search = json_answer(run("search", *world.search(remove=size["n_removed"]), "--json"))
        assert size["delta_error"] == search["delta_error"] > 0
    shown = run("recommend", "latest", "budget.loss=1000").out
    assert "recommended" in shown
    assert "3 layers can go: the loss falls by 0.1980" in shown
    advice = raysearch.open().search().recommend("budget.readout=1000%")
    assert advice.n_removed == 3
    assert advice.budget.readout == 10
    for size in advice.sizes:
        assert size.readout_change == pytest.approx(size.readout / advice.dense_readout - 1)
    for overrides in (
        "budget.speedup=1.2",
        "budget.loss=-0.1",
        "budget.los=1",
        "budget.loss=few",
        "budget.loss=6GB",
        "budget.loss=10%",
        "budget.speedup=fast",
        "budget.readout=20",
        "budget.memory=6TB",
        "budget.kv_memory=15%",
        "budget.kv_memory=2",
        "budget.kv_memory=-90%",
        "budget.kv_memory=1GB",
        "budget.latency_ms=0",
        "budget.latency_ms=1s",
        "budget.latency_ms=800",
        "",
    ):
        outcome = run("recommend", "latest", *overrides.split())
        assert outcome.err.count("\n") == 1, overrides
        sentences.refused_command(outcome, overrides or "nothing")


def test_measured_speeds_decide(
    run: Run, searched: Mapping[int, Mapping[str, Any]], monkeypatch: pytest.MonkeyPatch, sentences: Sentences
) -> None:
    # Compared with it, the weights are small.
    monkeypatch.setattr("raysearch.assessment.speed.PeakMemory.growth", lambda _: 0)
    quick = "assess.speed.context_tokens=8", "assess.speed.new_tokens=2", "assess.speed.repeats=2"
    measured = json_answer(
        run("assess", "latest", "--remove", 2, "assess=none", "assess.speed.enabled=true", *quick, "--json")
    )
    decoding = measured["pruned"]["decode_tokens_per_s"]
    memory = measured["pruned"]["peak_memory_bytes"]["retention"] - 1
    advice = raysearch.open().search().recommend("budget.loss=1000")
    (speed_of_1, speed_of_2, speed_of_3) = (size.speed for size in advice.sizes)
    peak = measured["pruned"]["peak_memory_bytes"]["value"]
    assert speed_of_1 is not None
    assert speed_of_2 is not None
    assert speed_of_3 is not None
    assert speed_of_2.speedup == pytest.approx(decoding["retention"])
    assert speed_of_2.memory == memory
    assert speed_of_2.memory_bytes == pytest.approx(peak)
    assert [speed_of_1.memory, speed_of_3.memory] == pytest.approx([memory / 2, 1.5 * memory]), "layers add up"
    assert raysearch.open().search().recommend(f"budget.memory={memory!r}").n_removed == 2
    absolute = raysearch.open().search().recommend(f"budget.memory={peak / 1e6!r}MB")
    assert absolute.n_removed == 2
    assert f", memory {size_text(peak)}; " in absolute.reason
    sentences.hide(re.compile(r"[\d.]+(?= [kM]B)"), "size")
    sentences.hide(re.compile(r"[\d.]+ ± [\d.]+(?= times)"), "speed")
    with sentences.refused(UserError):
        raysearch.open().search().recommend("budget.memory=1000")
    with sentences.refused(UserError):
        raysearch.open().search().recommend("budget.memory=6GB")
    assert raysearch.open().search().recommend("budget.memory=6GB", "budget.loss=1000").n_removed == 3
    assert raysearch.open().search().recommend(budget={"memory": "6GB", "loss": 1000}).n_removed == 3
    latencies = [size.speed.latency_ms for size in advice.sizes if size.speed is not None]
    faster = raysearch.open().search().recommend("budget.latency_ms=1e9", "budget.loss=1000")
    assert [size.speed.latency_ms for size in faster.sizes if size.speed is not None] == latencies
    assert f"{latencies[2]:.4g} ± " in faster.reason
    with sentences.refused(UserError):
        raysearch.open().search().recommend("budget.speedup=2000")


def test_the_kv_cache_is_counted_without_a_measurement(run: Run, searched: Mapping[int, Mapping[str, Any]]) -> None:
    """The model has 5 equal layers, each with keys and values of 2 heads of 8 numbers in float32."""
    dense_bytes = 5 * 2 * 2 * 8 * 4 * (512 + 64)
    advice = raysearch.open().search().recommend("budget.kv_memory=-40%")
    assert advice.n_removed == 2
    sizes = [size.kv_memory.size_bytes for size in advice.sizes if size.kv_memory is not None]
    assert sizes == [dense_bytes * kept // 5 for kept in (4, 3, 2)]
    assert all(size.speed is None for size in advice.sizes)
    assert raysearch.open().search().recommend(f"budget.kv_memory={sizes[2]}", "budget.loss=1000").n_removed == 3
    table = run("recommend", "latest", "budget.kv_memory=-40%").out
    assert "KV cache -40.0%; with 1 it misses budget.kv_memory" in " ".join(table.split())
    assert "speed (× dense)" not in table, "no speed was measured"


def test_what_is_no_budget_is_refused(sentences: Sentences) -> None:
    sentences.refused_each(
        Budget,
        [
            {"loss": float("inf")},
            {"speedup": 0.8},
            {"memory": 0.2},
        ],
    )
    sentences.refused_each(Budget.parse, [["budget.memory=10%"]])
    assert Budget.parse(["budget.memory=-15%", "budget.loss=.5"]) == Budget(loss=0.5, memory=-0.15)
    assert Budget.parse(["budget.memory=6GB"]) == Budget(memory=6e9)
    assert str(Budget(memory=6e9)) == "budget.memory=6GB"
    assert Budget.parse(["budget.memory=512 MiB"]) == Budget(memory=2.0**29)


def test_a_missed_readout_is_reported() -> None:
    from raysearch.core.measure import PERPLEXITY

    budget = Budget(readout=0.1)
    sizes = [facts_of(Mask.of(1), 1.2, 1.0, PERPLEXITY, budget)]
    facts = recommend._facts(sizes[0], budget, PERPLEXITY)
    assert facts == "the loss rises by 0.2000, perplexity is 22.1% worse"
