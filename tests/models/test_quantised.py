"""Quantised models are exported in their quantisation, byte for byte."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from raysearch.core.mask import Mask
from raysearch.models.spec import ModelSpec
from tests.cases import assert_each
from tests.checkpoints.test_pruning import assert_pruned
from tests.models.families import _EXPERTS, _HEAD, _MLA, _ROUTED, _WIDTHS, N_LAYERS, tiny
from tests.models.test_export import exported

_BLOCK = 128
_WIDE = {**_WIDTHS, "hidden_size": _BLOCK, "intermediate_size": _BLOCK, "moe_intermediate_size": _BLOCK}


def quantised(folder: Path, model: Any, convert: Callable[[str, Tensor], dict[str, Tensor]], config: Any) -> ModelSpec:
    """Write the model's checkpoint with converted weights, and a config that describes the quantisation."""
    model.save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    converted = {name: part for weight, values in weights.items() for name, part in convert(weight, values).items()}
    save_file(converted, folder / "model.safetensors", metadata={"format": "pt"})
    values = json.loads((folder / "config.json").read_text())
    values |= {"dtype": "bfloat16", "quantization_config": config}
    (folder / "config.json").write_text(json.dumps(values))
    return ModelSpec(model.config.model_type, str(folder))


def by_blocks(name: str, values: Tensor) -> dict[str, Tensor]:
    """Quantise like Qwen3-30B-A3B-FP8: blocks of 128 by 128 share a scale; router, embedding and head stay."""
    if values.ndim != 2 or "layers" not in name or "gate.weight" in name:
        return {name: values.to(torch.bfloat16)}
    rows, columns = (-(-length // _BLOCK) for length in values.shape)
    scales = torch.empty(rows, columns)
    converted = torch.empty_like(values, dtype=torch.float8_e4m3fn)
    for row in range(rows):
        for column in range(columns):
            block = slice(row * _BLOCK, (row + 1) * _BLOCK), slice(column * _BLOCK, (column + 1) * _BLOCK)
            scales[row, column] = values[block].abs().max() / 448
            converted[block] = (values[block] / scales[row, column]).to(torch.float8_e4m3fn)
    return {name: converted, f"{name}_scale_inv": scales}


def fp8(folder: Path, model: Any) -> ModelSpec:
    """Write a model quantised by `by_blocks`."""
    blocks = {"quant_method": "fp8", "weight_block_size": [_BLOCK, _BLOCK], "activation_scheme": "dynamic"}
    return quantised(folder, model, by_blocks, blocks)


def mxfp4(folder: Path) -> ModelSpec:
    """Quantise like gpt-oss-20b: the experts have blocks of 32 values with a scale."""
    random = torch.Generator().manual_seed(0)

    def convert(name: str, values: Tensor) -> dict[str, Tensor]:
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            return {name: values.to(torch.bfloat16)}
        experts, inputs, outputs = values.shape
        shape = experts, outputs, inputs // 32
        return {
            f"{name}_blocks": torch.randint(0, 256, (*shape, 16), dtype=torch.uint8, generator=random),
            f"{name}_scales": torch.randint(121, 125, shape, dtype=torch.uint8, generator=random),
        }

    widths = {**_WIDTHS, **_HEAD, **_EXPERTS, "hidden_size": 64, "intermediate_size": 64, "sliding_window": 8}
    not_converted = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    return quantised(
        folder, tiny("gpt_oss", **widths), convert, {"quant_method": "mxfp4", "modules_to_not_convert": not_converted}
    )


def test_a_quantised_model_keeps_its_quantisation(tmp_path: Path) -> None:
    """transformers dequantises these on a CPU; the files stay as they are."""
    deepseek = {**_WIDE, "num_key_value_heads": 4, **_ROUTED, **_MLA, "first_k_dense_replace": 1}
    deepseek["moe_intermediate_size"] = _BLOCK
    specs = {
        "llama": lambda folder: fp8(folder, tiny("llama", **_WIDE)),
        "qwen3_moe": lambda folder: fp8(folder, tiny("qwen3_moe", **_HEAD, **{**_EXPERTS, **_WIDE})),
        "deepseek_v3": lambda folder: fp8(folder, tiny("deepseek_v3", **deepseek)),
        "gpt_oss": mxfp4,
    }

    def check(kind: str) -> None:
        spec = specs[kind](tmp_path / kind)
        out = tmp_path / f"{kind}-pruned"
        report = exported(spec, Mask.of(1, 2), out)
        assert (report.n_layers, report.max_logit_difference) == (N_LAYERS - 2, 0)
        assert_pruned(Path(spec.path), out, "model.layers", {0: 0, 3: 1})
        before, after = (json.loads((folder / "config.json").read_text()) for folder in (Path(spec.path), out))
        assert after["quantization_config"] == before["quantization_config"]

    assert_each(specs, check)


def test_four_bits_stay_four_bits(tmp_path: Path) -> None:
    tiny("llama", **_WIDE).save_pretrained(tmp_path / "plain")
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "plain", quantization_config=config)
    model.save_pretrained(tmp_path / "dense")
    done = exported(ModelSpec("tiny", str(tmp_path / "dense")), Mask.of(1, 2), tmp_path / "pruned")
    assert (done.n_layers, done.max_logit_difference) == (N_LAYERS - 2, 0)
    assert json.loads((tmp_path / "pruned" / "config.json").read_text())["quantization_config"]["load_in_4bit"]
    assert_pruned(tmp_path / "dense", tmp_path / "pruned", "model.layers", {0: 0, 3: 1})
    written = load_file(tmp_path / "pruned" / "model.safetensors")
    assert written["model.layers.1.mlp.down_proj.weight"].dtype == torch.uint8


def test_lists_of_modules_follow_their_layers(tmp_path: Path) -> None:
    """A layer that is not quantised would otherwise be read as quantised, once it has another number."""
    whole = "model.layers.2."

    def part(name: str, values: Tensor) -> dict[str, Tensor]:
        return {name: values.to(torch.bfloat16)} if name.startswith(whole) else by_blocks(name, values)

    blocks = {"quant_method": "fp8", "weight_block_size": [_BLOCK, _BLOCK], "activation_scheme": "dynamic"}
    modules = [f"{whole}self_attn.{name}_proj" for name in "qkvo"] + [
        f"{whole}mlp.{name}_proj" for name in ("gate", "up", "down")
    ]
    config = {**blocks, "modules_to_not_convert": ["lm_head", *modules]}
    spec = quantised(tmp_path / "dense", tiny("llama", **_WIDE), part, config)
    assert exported(spec, Mask.of(0), tmp_path / "pruned").max_logit_difference == 0
    written = json.loads((tmp_path / "pruned" / "config.json").read_text())["quantization_config"]
    renumbered = [name.replace("layers.2.", "layers.1.") for name in modules]
    assert written["modules_to_not_convert"] == ["lm_head", *renumbered]
