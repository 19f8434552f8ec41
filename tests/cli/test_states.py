"""Models whose layers pass on several hidden states, or further values, are searched and exported."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.answers import json_answer
from tests.cli.conftest import Run, World
from tests.models.families import PASSING, STREAMS


@pytest.mark.parametrize("family", ["deepseek_v4", "gemma3n_text", "hy_v4"])
def test_an_exported_model_has_the_loss_of_its_mask(run: Run, world: World, tmp_path: Path, family: str) -> None:
    shutil.copytree(world.model, tmp_path / "dense")
    (STREAMS | PASSING)[family]().save_pretrained(tmp_path / "dense")
    dense = replace(world, model=tmp_path / "dense")
    result = json_answer(run("search", *dense.search(protect="[0]", searcher="greedy"), "--json"))
    exported = json_answer(run("export", "latest", "--out", str(tmp_path / "pruned"), "--json"))
    assert exported["max_logit_difference"] == 0
    pruned = replace(world, model=tmp_path / "pruned")
    score = json_answer(run("search", *pruned.search(remove=1, searcher="block_influence"), "--json"))
    assert score["dense_loss"] == pytest.approx(result["loss"], rel=1e-5)
    assert result["loss"] != pytest.approx(result["dense_loss"], rel=1e-3), "the layers matter"
