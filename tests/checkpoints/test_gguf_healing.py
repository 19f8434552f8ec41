"""llama.cpp computes the trained model from its GGUF file; tensors that were not trained keep their bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from raysearch.checkpoints.gguf_healing import HealedGGUF, heal_gguf
from raysearch.core.mask import Mask
from raysearch.errors import UserError
from raysearch.models.loading import load_model
from raysearch.models.source import locate
from raysearch.models.spec import ModelSpec
from raysearch.models.stack import LayerStack
from raysearch.models.surgery import remove_layers
from tests.checkpoints.test_gguf_pruning import TOKENS, by_llama_cpp, sizes_of
from tests.models.conftest import write_llama
from tests.sentences import Sentences

MASK = Mask.of(1, 2)
PAIR = Mask.of("1m", "2a")
LINEAR = ("q_proj", "k_proj", "o_proj", "down_proj")


def change(name: str) -> bool:
    """Return whether a weight is trained: some linear layers and a norm, but no embedding."""
    return any(part in name for part in (*LINEAR, "input_layernorm"))


def healed(
    source: Path, trains: Callable[[str], bool] = change, size: float = 0.1, mask: Mask = MASK
) -> tuple[HealedGGUF, PreTrainedModel]:
    """Write the file without a mask, trained by random numbers. Return the file and the trained model."""
    dense = load_model(locate(ModelSpec("tiny", str(source), dtype="float32", attention="eager")))
    if mask == PAIR:
        layers: Any = dense.model.layers
        for name in ("mlp", "post_attention_layernorm"):
            setattr(layers[1], name, getattr(layers[2], name))
    model = remove_layers(LayerStack(dense), Mask.of(2) if mask == PAIR else mask)
    folder = source.parent
    generator = torch.Generator().manual_seed(1)
    model.save_pretrained(folder / "pruned")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if trains(name):
                weight.add_(size * torch.randn(weight.shape, generator=generator))
    model.save_pretrained(folder / "healed")
    file = heal_gguf(
        source,
        mask,
        folder / "healed.gguf",
        pruned=folder / "pruned",
        healed=folder / "healed",
        sizes=sizes_of(source),
        search_id="greedy-m2-1",
        overwrite=False,
    )
    return file, model


def log_p(model: PreTrainedModel) -> np.ndarray[Any, Any]:
    with torch.inference_mode():
        values: Any = torch.log_softmax(model(torch.tensor([TOKENS])).logits[0, -1].double(), -1).numpy()
    return values


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "quantised"), [("llama", False), ("llama", True), ("gemma2", False)])
def test_llama_cpp_computes_the_trained_model(architecture: str, quantised: bool, tmp_path: Path) -> None:
    """In the file of a Llama, the halves of heads are interleaved; in that of a Gemma, norms are stored as 1 + w."""
    source = write_llama(tmp_path / "dense.gguf", architecture=architecture, quantised=quantised)
    done, model = healed(source)
    assert (done.file.n_layers, done.coarser, done.command) == (2, (), None)
    assert len(done.changed) == 2 * 5
    expected = log_p(model)
    computed = by_llama_cpp(done.file.out)
    pruned: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "pruned", attn_implementation="eager")
    gap = np.abs(computed - expected).max()
    effect_of_training = np.abs(log_p(pruned.eval()) - expected).max()
    assert gap < (0.15 if quantised else 5e-3) < 1.0 < effect_of_training, (gap, effect_of_training)


@pytest.mark.slow
def test_llama_cpp_computes_the_trained_model_without_a_pair(tmp_path: Path) -> None:
    done, model = healed(write_llama(tmp_path / "dense.gguf"), mask=PAIR)
    assert (done.file.n_layers, len(done.changed)) == (3, 3 * 5)
    assert np.abs(by_llama_cpp(done.file.out) - log_p(model)).max() < 5e-3


def test_trained_tensors_keep_their_quantisation_and_others_their_bytes(tmp_path: Path) -> None:
    source = write_llama(tmp_path / "dense.gguf", quantised=True)
    done, model = healed(source)
    before = {tensor.name: tensor for tensor in gguf.GGUFReader(source).tensors}
    after = {tensor.name: tensor for tensor in gguf.GGUFReader(done.file.out).tensors}
    changed = set()
    for name, tensor in after.items():
        old = before[name.replace("blk.1.", "blk.3.")]
        assert tensor.tensor_type == old.tensor_type
        if tensor.data.tobytes() != old.data.tobytes():
            changed.add(name)
    assert {name.partition(".")[2].partition(".")[2] for name in changed} == {
        f"{part}.weight" for part in ("attn_q", "attn_k", "attn_output", "ffn_down", "attn_norm")
    }
    weights = load_model(locate(ModelSpec("healed", str(done.file.out), dtype="float32"))).state_dict()
    gaps = {name: float((weights[name] - weight).abs().max()) for name, weight in model.state_dict().items()}
    assert max(gaps.values()) < 0.01, "the gap is that of eight bits"


def test_a_small_training_is_not_rounded_away(tmp_path: Path) -> None:
    """In four bits, every weight would be rounded to its old value, so eight bits are used."""
    source = write_llama(tmp_path / "dense.gguf", quantised=True, quantisation="Q4_0")
    done, model = healed(source, size=0.02)
    stored = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(done.file.out).tensors}
    assert stored["blk.0.attn_q.weight"] == "Q8_0"
    assert stored["blk.0.attn_v.weight"] == "Q4_0"
    out = done.file.out
    assert (done.coarser, done.command) == (("Q4_0",), None), "the source does not name its quantisation"
    weights = load_model(locate(ModelSpec("healed", str(out), dtype="float32"))).state_dict()
    gaps = {name: float((weights[name] - weight).abs().max()) for name, weight in model.state_dict().items()}
    assert max(gaps.values()) < 0.005


def test_a_trained_weight_that_the_file_does_not_have_is_refused(tmp_path: Path, sentences: Sentences) -> None:
    source = write_llama(tmp_path / "dense.gguf", architecture="qwen3moe", context=32)
    with sentences.refused(UserError):
        healed(source, lambda name: "experts" in name)
