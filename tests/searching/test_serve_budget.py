"""Budgets in the numbers of a runtime: real servers of llama.cpp, which a search by budget starts."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

import raysearch
from raysearch.configuration import build
from raysearch.core.mask import Mask
from raysearch.errors import UserError
from raysearch.ledger.assessments import assessments_with
from raysearch.searching.recommend import recommend
from raysearch.searching.recommendation import Budget
from tests.cli.conftest import World
from tests.models.conftest import write_llama
from tests.sentences import Sentences

LLAMA_SERVER = shlex.join([sys.executable, str(Path(__file__).parents[1] / "assessment" / "llama_server.py")])
IN_LLAMA_CPP: dict[str, Any] = {
    "speed.serve": "llama.cpp",
    "serve.command": LLAMA_SERVER,
    "serve.context_tokens": 24,
    "serve.new_tokens": 6,
    "serve.repeats": 2,
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A tiny model of five layers with a tokenizer, as a GGUF file."""
    path = tmp_path / "tiny.gguf"
    write_llama(path, 5)
    return path


def test_a_search_has_the_numbers_of_its_runtime(world: World, model: Path, cwd: Path) -> None:
    budget = {"readout": "10000%", "kv_memory": "-30%", "latency_ms": 1e9}
    search = raysearch.search(*world.search(model=model, remove="auto", **IN_LLAMA_CPP), budget=budget)
    advice = search.result.recommendation
    assert advice is not None
    with search.location.opened_ledger() as ledger:
        measured = dict(assessments_with(ledger, search.result.fingerprints["model"], "latency_s"))
        assert {*measured} == {Mask(), Mask.of(2, 3, 4)}, "half of the layers, which are of one kind"
        for size in advice.sizes:
            assert size.speed is not None
            assert str(size.speed.runtime).startswith("llama.cpp xllamacpp")
            assert size.speed.memory is not None
            assert size.kv_memory is not None
            told = measured[Mask()]["kv_cache_bytes"]
            assert size.kv_memory.dense_bytes == pytest.approx(told, abs=0.005 * 2**20), "the log has two digits of MiB"
            assert size.kv_memory.change == pytest.approx(-size.n_removed / 5)
        of_three = advice.sizes[2].speed
        summary = measured[Mask.of(2, 3, 4)]
        assert of_three is not None
        assert of_three.memory_bytes == pytest.approx(summary["peak_memory_bytes"])
        assert search.recommend("budget.latency_ms=1e9", "budget.loss=1000").sizes[2].speed == of_three
        in_transformers = raysearch.search(*world.search(model=model, remove="1..4"))
        with pytest.raises(UserError, match="none are recorded"):
            recommend(in_transformers.result, Budget(speedup=1.1), ledger)


def test_options_of_a_runtime_name_the_search(world: World, model: Path) -> None:
    def id_of(**changes: Any) -> str:
        overrides = world.search(model=model, remove="auto", budget__speedup=1.1, **changes)
        return build.search_spec(overrides).search_id("calibration")

    ids = [
        id_of(),
        id_of(serve__batch=2),
        id_of(**IN_LLAMA_CPP),
        id_of(**IN_LLAMA_CPP, serve__batch=2),
        id_of(**IN_LLAMA_CPP, serve__timeout_s=9),
    ]
    assert ids[0] == ids[1], "it is measured in transformers"
    assert ids[2] == ids[4]
    assert len({*ids}) == 3


def test_what_a_runtime_cannot_measure_is_refused(world: World, model: Path, sentences: Sentences) -> None:
    changes: dict[str, Any] = {
        "a server that is up": {"serve.url": "http://127.0.0.1:9/v1"},
        "options of transformers": {"speed.batch": 2},
        "a runtime that is not known": {"speed.serve": "mlx"},
        "a checkpoint": {"model": world.model},
        "a program that fails": {"serve.command": "/bin/false"},
    }

    def forecast(name: str) -> None:
        options = {"model": model, **IN_LLAMA_CPP, **changes[name]}
        raysearch.forecast(*world.search(remove="auto", budget__speedup=1.1, **options))

    sentences.refused_each(forecast, list(changes))
