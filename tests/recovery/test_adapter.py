"""A search of a model with an adapter, from its command to the recovered model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from raysearch.models.loading import load_model
from raysearch.models.source import locate
from raysearch.models.spec import ModelSpec
from raysearch.models.verification import probe_logits, relative_gap
from tests.checkpoints.test_pruning import same_bytes, weights_of
from tests.cli.conftest import Run, World
from tests.models.conftest import write_llama
from tests.models.test_adapter import merged, write_lora
from tests.recovery.conftest import done
from tests.recovery.test_export import ASSESS, TRAIN
from tests.sentences import Sentences


@pytest.mark.slow
def test_a_merged_model_is_searched_exported_and_recovered(
    run: Run, world: World, cwd: Path, sentences: Sentences
) -> None:
    write_lora(AutoModelForCausalLM.from_pretrained(world.model), cwd / "lora", target_modules=["q_proj", "up_proj"])
    plain = done(run, "search", *world.search(searcher="one_shot"))
    sentences.refused_command(run("export", "latest", "--without-adapter", "--out", "x"), "no adapter")
    value = done(run, "search", *world.search(searcher="one_shot", model__adapter="lora"))
    assert value["search_id"] != plain["search_id"]
    assert value["dense_loss"] != plain["dense_loss"]
    assert "+ lora" in run("show").out
    shown = run("export", "latest", "--out", "pruned")
    assert "Adapter: pruned/adapter, for the model that export --without-adapter writes." in shown.out
    assert run("export", "latest", "--out", "base", "--without-adapter").code == 0
    base = AutoModelForCausalLM.from_pretrained(cwd / "base").eval()
    pruned = AutoModelForCausalLM.from_pretrained(cwd / "pruned").eval()
    assert relative_gap(probe_logits(merged(base, cwd / "pruned/adapter")), probe_logits(pruned)) <= 1e-5
    done(run, "recover", "latest", *TRAIN, *ASSESS, "recovery.targets=[q_proj]", "--out", "healed")
    before, after = weights_of(cwd / "pruned"), weights_of(cwd / "healed")
    changed = [name for name in before if not same_bytes(before[name], after[name])]
    assert changed
    assert all(name.endswith("q_proj.weight") for name in changed)
    trained = json.loads((cwd / "healed/adapter/adapter_config.json").read_text())
    assert trained["target_modules"] == ["q_proj"], "the folder has the adapter of the training"
    for options in (["--recovered", "--out", "x", "--without-adapter"], ["--gguf", "x.gguf"]):
        sentences.refused_command(run("export", "latest", *options), " ".join(options))


def test_the_file_of_a_gguf_model_lacks_its_adapter(run: Run, world: World, cwd: Path, sentences: Sentences) -> None:
    write_llama(cwd / "dense.gguf")
    settings = {"model": "dense.gguf", "model.dtype": "float32", "searcher": "one_shot"}
    dense = load_model(locate(ModelSpec("dense", str(cwd / "dense.gguf"), "float32")))
    write_lora(dense, cwd / "lora", target_modules=["q_proj"])
    shown = run("search", *world.search(**settings, model__adapter="lora"))
    assert "--out pruned-model" in shown.out
    assert "--gguf" not in shown.out
    sentences.refused_command(run("export", "latest", "--gguf", "x.gguf"))
    assert run("export", "latest", "--gguf", "base.gguf", "--without-adapter").code == 0
