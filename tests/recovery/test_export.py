"""raysearch export --recovered: the model that recover wrote, in another folder or as a GGUF file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import raysearch
from raysearch.models.file_cache import user_cache
from raysearch.recovery import steps
from tests.checkpoints.test_gguf_healing import log_p
from tests.checkpoints.test_gguf_pruning import by_llama_cpp
from tests.cli.conftest import Run, World
from tests.models.conftest import write_llama
from tests.recovery.conftest import done
from tests.sentences import Sentences

TRAIN = ["data.samples=24", "data.seq_len=16", "recovery.max_tokens=48", "recovery.top_k=8", "recovery.max_steps=3"]
ASSESS = ["assess=none", "assess.probe.enabled=false"]


@pytest.fixture
def searched(run: Run, world: World, cwd: Path) -> None:
    """A search of a GGUF file."""
    write_llama(cwd / "dense.gguf", quantised=True)
    done(run, "search", *world.search(model="dense.gguf", **{"model.dtype": "float32"}))


@pytest.mark.usefixtures("searched")
def test_a_recovered_gguf_file_becomes_a_gguf_file_again(run: Run, cwd: Path, sentences: Sentences) -> None:
    sentences.refused_command(run("export", "latest", "--recovered", "--out", "x"), "none")
    shown = run("recover", "latest", *TRAIN, *ASSESS, "recovery.learning_rate=0.05", "--out", "healed")
    assert shown.code == 0, shown.err
    (record,) = raysearch.open().search().recoveries()
    assert f"Next: raysearch export {record.search_id} --recovered --gguf healed.gguf" in shown.out
    assert f"{user_cache()} (" in " ".join(shown.out.split())
    assert "You may delete them" in shown.out
    exported = run("export", "latest", "--recovered", "--gguf", "healed.gguf")
    assert exported.code == 0, exported.err
    assert "Wrote healed.gguf: 2 layers" in exported.out
    assert "The recovery changed 14 tensors (" in exported.out
    healed, pruned = (
        AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
        for folder in (cwd / "healed", raysearch.open().search().export("pruned").out)
    )
    expected = log_p(healed)
    written = by_llama_cpp(cwd / "healed.gguf")
    gap = np.abs(written - expected).max()
    trained_by = np.abs(log_p(pruned) - expected).max()
    assert gap < 0.1, (gap, trained_by)
    assert gap < 0.5 * trained_by, (gap, trained_by)
    copied = run("export", "latest", "--recovered", "--out", "copy")
    assert f"Wrote copy: the model of {record.recovery_id}" in copied.out
    assert (cwd / "copy/model.safetensors").read_bytes() == (cwd / "healed/model.safetensors").read_bytes()
    shutil.rmtree(cwd / "healed")
    for options in ("--out x", "--out x --prompt a", "--gguf x --push a/b"):
        sentences.refused_command(run("export", "latest", "--recovered", *options.split()), options)


@pytest.mark.usefixtures("searched")
def test_a_recovery_of_all_weights_is_not_kept_twice_and_goes_elsewhere_by_training_again(
    run: Run, cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["recover", "latest", *TRAIN, *ASSESS, "recovery.method=full", "--out"]
    value = done(run, *command, "healed")
    (folder,) = (cwd / "mlruns/recoveries").iterdir()
    assert {entry.name for entry in folder.iterdir()} == {"rows.jsonl", "rows.json", "trained"}
    assert not [*folder.rglob("*.safetensors")]
    assert (folder / "trained/history.json").is_file()
    with monkeypatch.context() as patch:
        for name in ("write_checkpoint", "export_search"):
            patch.setattr(steps, name, pytest.fail)
        assert done(run, *command, "healed")["training"] == value["training"]
    elsewhere = done(run, *command, "elsewhere")
    assert elsewhere["training"]["points"] == value["training"]["points"]
    card = json.loads((cwd / "elsewhere/raysearch.json").read_text())
    assert card["recovery_id"] == value["recovery_id"]
