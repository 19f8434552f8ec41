"""Where memory runs out, fewer samples go through the model at once, with the same losses; or it is said what fits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from raysearch.core import site
from raysearch.models.layers import State
from raysearch.models.stack import LayerStack
from tests.cli.answers import json_answer
from tests.cli.conftest import Run, World
from tests.faults.injection import refused

pytestmark = [pytest.mark.slow, pytest.mark.faults]


def of_an_accelerator() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1.00 GiB free")


def of_the_machine() -> None:
    torch.empty(1 << 60, dtype=torch.uint8)


RUN_OUT = [of_an_accelerator, of_the_machine]


class Small:
    """A memory that holds so many samples, of so many tokens.

    Args:
        samples: At once.
        tokens: Of a sample.
        run_out: What happens to those who want more.
    """

    def __init__(self, samples: int, tokens: int, run_out: Callable[[], None]) -> None:
        self.samples, self.tokens, self.run_out = samples, tokens, run_out
        self.refused = 0

    def holds(self, hidden: torch.Tensor) -> None:
        if hidden.shape[0] > self.samples or hidden.shape[1] > self.tokens:
            self.refused += 1
            self.run_out()


@contextmanager
def small(run_out: Callable[[], None], samples: int = 99, tokens: int = 99) -> Iterator[Small]:
    """Gives all models a small memory."""
    memory, run_step = Small(samples, tokens, run_out), LayerStack.run

    def run(self: LayerStack, step: site.Run, state: State, *others: Any, **more: Any) -> State:
        if step.layer == 3:  # well inside of a walk
            memory.holds(state.hidden)
        return run_step(self, step, state, *others, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LayerStack, "run", run)
        yield memory


@pytest.mark.parametrize("searcher", ["greedy", "cbo_gradient"])
def test_fewer_samples_at_once_have_the_same_losses(
    run: Run, world: World, searcher: str, subtests: pytest.Subtests
) -> None:
    sizes = {"data.samples": 16, "data.shard_samples": 8, "remove": 3, "screening": "off"}
    arguments = ["search", *world.search(searcher=searcher, **sizes), "--json"]
    enough = json_answer(run(*arguments, "store=enough"))
    for run_out in RUN_OUT:
        with subtests.test(run_out.__name__), small(run_out, samples=3) as memory:
            outcome = run(*arguments, f"store={run_out.__name__}")
            assert memory.refused == 2, "8 and 4 at once do not fit, which is remembered for other shards and rounds"
            if searcher == "greedy":
                sentence = (
                    "warning: memory does not hold a shard; continuing with batches of 2 of its samples, as "
                    "data.shard_samples=2 would from the start\n"
                )
                assert outcome.err.count(sentence) == 1
            result = json_answer(outcome)
            assert result["loss"] == pytest.approx(enough["loss"], rel=1e-5)
            assert result["removed"] == enough["removed"]
            stores = ("enough", run_out.__name__)
            results = [json.loads(run("show", "latest", "--store", store, "--json").out) for store in stores]
            for trial, other in zip(*(each["result"]["trials"] for each in results), strict=True):
                assert trial["mask"] == other["mask"]
                assert trial["loss"] == pytest.approx(other["loss"], rel=1e-5)


def test_what_fits_is_remembered_for_all_shards_of_an_assessment(run: Run, world: World) -> None:
    text = f"assess.texts.prose=data=file data.path={world.text} data.samples=all data.sampling=sequential"
    arguments = ["assess", "latest", "assess=none", text, "assess.seq_len=32", "assess.limit=40", "cluster=inline"]
    for store in "enough", "small":
        json_answer(run("search", *world.search(), f"store={store}", "--json"))
    enough = json_answer(run(*arguments, "--store", "enough", "--json"))["dense"]
    with small(of_an_accelerator, samples=3) as memory:
        fewer = json_answer(run(*arguments, "--store", "small", "--json"))["dense"]
    assert fewer["prose"]["value"] == pytest.approx(enough["prose"]["value"], rel=1e-5)
    assert memory.refused == 2, "14 and 7 at once do not fit in the first of 3 shards"


def test_where_too_little_fits_it_is_said_what_would(run: Run, world: World, subtests: pytest.Subtests) -> None:
    for run_out in RUN_OUT:
        with subtests.test(f"a sample: {run_out.__name__}"), small(run_out, tokens=20):
            sentence = "a single sample of 64 tokens is more than cpu holds", "16 tokens fit, so use data.seq_len=16"
            refused(run("search", *world.search(data__seq_len=64), f"store={run_out.__name__}", "--json"), *sentence)
            json_answer(run("search", *world.search(data__seq_len=16), f"store={run_out.__name__}", "--json"))
        with subtests.test(f"the model: {run_out.__name__}"), small(run_out, tokens=0):
            said_of_all = f"cpu does not hold model={world.model}; use model.dtype=bfloat16"
            refused(run("search", *world.search(), f"store=not-{run_out.__name__}", "--json"), said_of_all)


def test_where_nothing_fits_no_length_is_promised(run: Run, world: World) -> None:
    with small(of_an_accelerator, tokens=12):
        outcome = run("search", *world.search(), "--json")
    refused(outcome, "a single sample of 16 tokens", "use a smaller data.seq_len, or")
