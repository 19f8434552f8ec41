"""A loss that is not a number is a failure with its cause, on the record, and no searcher ever sees it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from raysearch.core.mask import Mask
from raysearch.searchers.base import Round, Scores
from raysearch.searching.search_recorder import SearchRecorder
from tests.cli.answers import json_answer
from tests.cli.conftest import N_LAYERS, Run, World
from tests.models.families import tiny

pytestmark = [pytest.mark.slow, pytest.mark.faults]

#: What layers 0 to 3 add to the hidden state: one after another they cancel, but without layer 1 it overflows.
_ADDED = (2e38, -2e38, 2e38, -2e38)


@pytest.fixture
def fragile(world: World, tmp_path: Path) -> World:
    """A model that gives NaN without layer 1, and without some others."""
    folder = tmp_path / "fragile"
    shutil.copytree(world.model, folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    config = {**model.config.to_dict(), "mlp_bias": True}
    for key in ("model_type", "architectures", "transformers_version"):
        config.pop(key, None)
    model = tiny("llama", **config)
    with torch.no_grad():
        for layer, added in zip(model.model.layers, _ADDED, strict=False):
            layer.mlp.down_proj.bias.fill_(added)
        model.model.layers[N_LAYERS - 1].mlp.down_proj.bias.fill_(0.1)
    model.save_pretrained(folder)
    return World(folder, world.text)


def overflows(mask: Iterable[int]) -> bool:
    """Whether float32 does not hold what the layers add without these."""
    states = accumulate(added for layer, added in enumerate(_ADDED) if layer not in mask)
    return any(abs(state) > torch.finfo(torch.float32).max for state in states)


#: Searchers that meet masks which give NaN, and the keys of those that would ask for many.
SEARCHERS: dict[str, dict[str, object]] = {
    "greedy": {},
    "beam": {},
    "genetic": {},
    "bayesian": {"searcher.trials": 5, "searcher.initial": 2},
    "cbo": {"searcher.k": 4},
    "random": {"searcher.k": 10},
    "exhaustive": {},
}


def test_a_mask_that_gives_nan_has_failed(
    run: Run, fragile: World, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    evaluated_masks: dict[Mask, float] = {}
    evaluate = SearchRecorder.evaluate

    def watched(self: SearchRecorder, proposed: Round) -> Scores:
        scores = evaluate(self, proposed)
        evaluated_masks.update(scores.losses)
        return scores

    monkeypatch.setattr(SearchRecorder, "evaluate", watched)
    for searcher, few in SEARCHERS.items():
        evaluated_masks.clear()
        with subtests.test(searcher):
            result = json_answer(run("search", *fragile.search(searcher=searcher, store=searcher, **few), "--json"))
            assert not overflows(result["removed"])
            trials = json.loads(run("show", "latest", "--store", searcher, "--json").out)["result"]["trials"]
            assert any(overflows(trial["mask"]) for trial in trials)
            for trial in trials:
                assert trial["failure"] == ("the loss is nan" if overflows(trial["mask"]) else None)
                assert (trial["loss"] is None) == overflows(trial["mask"])
            assert evaluated_masks
            assert not [mask for mask in evaluated_masks if overflows(mask)]


def test_score_ends_with_the_cause(run: Run, fragile: World) -> None:
    outcome = run("score", "masks=[[1]]", *fragile.overrides(), "--json")
    assert (outcome.code, outcome.out) == (1, "")
    assert "mask {1}: the loss is nan" in outcome.err
