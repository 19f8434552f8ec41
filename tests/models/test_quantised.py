"""Quantised models are exported in their quantisation, byte for byte."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from raysearch.core.mask import Mask
from raysearch.errors import UnsupportedModelError, UserError
from raysearch.models.spec import ModelSpec
from tests.cases import assert_each
from tests.checkpoints.test_pruning import add_heads, assert_pruned, weights_of
from tests.models.families import _EXPERTS, _HEAD, _MLA, _ROUTED, _WIDTHS, N_LAYERS, tiny
from tests.models.test_export import exported, write_tokenizer
from tests.sentences import Sentences

_BLOCK = 128
_WIDE = {**_WIDTHS, "hidden_size": _BLOCK, "intermediate_size": _BLOCK, "moe_intermediate_size": _BLOCK}
_DEEPSEEK = {**_ROUTED, **_MLA, **_WIDE, "num_key_value_heads": 4, "first_k_dense_replace": 1}
_MLA_MODULES = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
_FP8 = {"quant_method": "fp8", "weight_block_size": [_BLOCK, _BLOCK], "activation_scheme": "dynamic"}


def quantised(
    folder: Path, model: Any, convert: Callable[[str, Tensor], dict[str, Tensor]], config: Any, n_heads: int = 0
) -> ModelSpec:
    """Write the model's checkpoint with converted weights, and a config that describes the quantisation.

    Args:
        folder: The folder to write.
        model: The model.
        convert: What stands for a tensor, by the names of the new tensors.
        config: The description of the quantisation.
        n_heads: Whether the layers are followed by a head that predicts a further token: 0 or 1.
    """
    model.save_pretrained(folder)
    if n_heads:
        last = f"model.layers.{N_LAYERS - 1}."
        add_heads(folder, lambda name: name.replace(last, f"model.layers.{N_LAYERS}."), last)
    weights = load_file(folder / "model.safetensors")
    converted = {name: part for weight, values in weights.items() for name, part in convert(weight, values).items()}
    save_file(converted, folder / "model.safetensors", metadata={"format": "pt"})
    values = json.loads((folder / "config.json").read_text())
    values |= {"dtype": "bfloat16", "quantization_config": config, "num_nextn_predict_layers": n_heads}
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
    return quantised(folder, model, by_blocks, _FP8)


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
    specs = {
        "llama": lambda folder: fp8(folder, tiny("llama", **_WIDE)),
        "qwen3_moe": lambda folder: fp8(folder, tiny("qwen3_moe", **_HEAD, **{**_EXPERTS, **_WIDE})),
        "deepseek_v3": lambda folder: fp8(folder, tiny("deepseek_v3", **_DEEPSEEK)),
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


def compressed(folder: Path, scheme: str) -> ModelSpec:
    """Quantise a model with compressed-tensors, which also reads it.

    Args:
        folder: The folder to write.
        scheme: The name of one of the library's schemes, such as ``W4A16``.
    """
    from compressed_tensors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config, preset_name_to_scheme
    from compressed_tensors.quantization.utils import calculate_qparams

    model: Any = tiny("qwen3", **_WIDE, head_dim=32)
    model.to(torch.bfloat16)
    groups = {"group_0": preset_name_to_scheme(scheme, ["Linear"])}
    ignored = ["lm_head", "model.layers.2.mlp.down_proj", r"re:.*layers\.(1|3)\.self_attn\.q_proj"]
    apply_quantization_config(model, QuantizationConfig(config_groups=groups, ignore=ignored))
    for module in model.modules():
        if not hasattr(module, "quantization_scheme"):
            continue
        blocks = module.weight.float().unflatten(1, (module.weight_scale.shape[1], -1))
        total_scale = getattr(module, "weight_global_scale", None)
        if total_scale is not None:  # of NVFP4, whose scales of blocks are in FP8
            total_scale.copy_(448 * 6 / blocks.abs().max())
            module.input_global_scale.fill_(448 * 6 / 4)
        weights = module.quantization_scheme.weights
        scale, zero = calculate_qparams(blocks.amin(-1), blocks.amax(-1), weights, global_scale=total_scale)
        module.weight_scale.copy_(scale)
        module.weight_zero_point.copy_(zero)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(folder)
    compressor.update_config(str(folder))
    return ModelSpec(scheme, str(folder))


def test_checkpoints_of_compressed_tensors_stay_compressed(tmp_path: Path) -> None:
    """The library names the modules that it ignores one by one; they follow their layers."""
    dtypes = {
        "FP8_DYNAMIC": torch.float8_e4m3fn,
        "W8A8": torch.int8,
        "W4A16": torch.int32,
        "NVFP4": torch.uint8,
    }

    def check(scheme: str) -> None:
        spec = compressed(tmp_path / scheme, scheme)
        out = tmp_path / f"{scheme}-pruned"
        assert exported(spec, Mask.of(0), out).max_logit_difference == 0
        assert_pruned(Path(spec.path), out, "model.layers", {1: 0, 2: 1, 3: 2})
        written = weights_of(out)
        packed = next(values for name, values in written.items() if re.search(r"1.mlp.up_proj.weight(_packed)?$", name))
        assert packed.dtype == dtypes[scheme]
        assert written["model.layers.1.mlp.down_proj.weight"].dtype == torch.bfloat16
        ignored = json.loads((out / "config.json").read_text())["quantization_config"]["ignore"]
        assert sorted(ignored) == [
            "lm_head",
            "model.layers.0.self_attn.q_proj",
            "model.layers.1.mlp.down_proj",
            "model.layers.2.self_attn.q_proj",
        ]

    assert_each(dtypes, check)


def test_four_bits_stay_four_bits(tmp_path: Path) -> None:
    tiny("llama", **_WIDE).save_pretrained(tmp_path / "plain")
    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=torch.float32,
        llm_int8_skip_modules=["lm_head", "model.layers.2.mlp.down_proj", "model.layers.3.self_attn"],
    )
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "plain", quantization_config=config)
    model.save_pretrained(tmp_path / "dense")
    done = exported(ModelSpec("tiny", str(tmp_path / "dense")), Mask.of(1), tmp_path / "pruned")
    assert (done.n_layers, done.max_logit_difference) == (N_LAYERS - 1, 0)
    assert_pruned(tmp_path / "dense", tmp_path / "pruned", "model.layers")
    quantisation = json.loads((tmp_path / "pruned" / "config.json").read_text())["quantization_config"]
    assert quantisation["load_in_4bit"]
    skipped = ["lm_head", "model.layers.1.mlp.down_proj", "model.layers.2.self_attn"]
    assert quantisation["llm_int8_skip_modules"] == skipped
    written = load_file(tmp_path / "pruned" / "model.safetensors")
    assert written["model.layers.2.mlp.down_proj.weight"].dtype == torch.uint8
    assert written["model.layers.1.mlp.down_proj.weight"].dtype == torch.float32
    assert written["model.layers.2.self_attn.q_proj.weight"].dtype == torch.float32


def test_lists_of_modules_follow_their_layers(tmp_path: Path) -> None:
    """A layer that is not quantised would otherwise be read as quantised, once it has another number."""
    whole = "model.layers.2."

    head = f"model.layers.{N_LAYERS}."  # it predicts a further token

    def part(name: str, values: Tensor) -> dict[str, Tensor]:
        stays = name.startswith((whole, f"{head}eh_proj"))
        return {name: values.to(torch.bfloat16)} if stays else by_blocks(name, values)

    llama = [f"{whole}self_attn.{name}_proj" for name in "qkvo"] + [
        f"{whole}mlp.{name}_proj" for name in ("gate", "up", "down")
    ]
    attention = [f"{whole}self_attn.{name}" for name in _MLA_MODULES]
    cases: dict[str, tuple[str, dict[str, Any], list[str]]] = {
        "llama": ("modules_to_not_convert", _WIDE, llama),
        "deepseek_v3": ("ignored_layers", _DEEPSEEK, [*attention, f"{whole}mlp", f"{head}eh_proj"]),
    }

    def check(kind: str) -> None:
        key, settings, modules = cases[kind]
        config = {**_FP8, key: ["lm_head", *modules]}
        spec = quantised(tmp_path / kind, tiny(kind, **settings), part, config, n_heads=1)
        assert exported(spec, Mask.of(0), tmp_path / f"{kind}-pruned").max_logit_difference == 0
        written = json.loads((tmp_path / f"{kind}-pruned" / "config.json").read_text())["quantization_config"]
        renumbered = [name.replace(whole, "model.layers.1.").replace(head, "model.layers.3.") for name in modules]
        assert written[key] == ["lm_head", *renumbered]

    assert_each(cases, check)


def by_gptq(name: str, values: Tensor) -> dict[str, Tensor]:
    """Quantise like GPTQModel, with random values: 8 numbers of 4 bits in one of 32."""
    if values.ndim != 2 or "layers" not in name:
        return {name: values.to(torch.bfloat16)}
    module = name.removesuffix(".weight")
    outputs, inputs = values.shape
    return {
        f"{module}.qweight": torch.randint(2**30, (inputs // 8, outputs), dtype=torch.int32),
        f"{module}.qzeros": torch.randint(2**30, (1, outputs // 8), dtype=torch.int32),
        f"{module}.scales": torch.rand(1, outputs, dtype=torch.float16),
        f"{module}.g_idx": torch.zeros(inputs, dtype=torch.int32),
    }


def by_tensor(name: str, values: Tensor) -> dict[str, Tensor]:
    """Quantise like ModelOpt: each weight in FP8 has a scale, and one for its inputs."""
    if values.ndim != 2 or "layers" not in name:
        return {name: values.to(torch.bfloat16)}
    module = name.removesuffix(".weight")
    scales = {f"{module}.weight_scale": torch.ones(()), f"{module}.input_scale": torch.ones(())}
    return {name: values.to(torch.float8_e4m3fn), **scales}


def test_a_quantisation_that_cannot_run_here_is_proven_by_its_files(tmp_path: Path, sentences: Sentences) -> None:
    """transformers has no code for one of these methods, and needs libraries that are missing for the other."""
    cases: dict[str, tuple[Callable[[str, Tensor], dict[str, Tensor]], dict[str, Any]]] = {
        "gptq": (by_gptq, {"quant_method": "gptq", "bits": 4, "group_size": _BLOCK}),
        "modelopt": (by_tensor, {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]}),
    }
    for method, (convert, config) in cases.items():
        spec = quantised(tmp_path / method, tiny("llama", **_WIDE), convert, config)
        out = tmp_path / f"{method}-pruned"
        report = exported(spec, Mask.of(0), out)
        assert report.max_logit_difference is None
        assert_pruned(Path(spec.path), out, "model.layers", {1: 0, 2: 1, 3: 2})
        assert report.not_run is not None
        sentences.check(report.not_run, f"{method}: not run")
        assert f"The model was not run, since {report.not_run}." in (out / "README.md").read_text()
        write_tokenizer(spec.path)
        with sentences.refused(UserError, f"{method}: prompt"):
            exported(spec, Mask.of(0), tmp_path / "other", prompt="w3")


def test_weights_that_no_module_reads_are_refused_in_any_quantisation(tmp_path: Path, sentences: Sentences) -> None:
    def misnamed(name: str, values: Tensor) -> dict[str, Tensor]:
        return by_gptq(name.replace("layers.1.mlp.up_proj", "layers.1.mlp.other_proj"), values)

    config = {"quant_method": "gptq", "bits": 4, "group_size": _BLOCK}
    spec = quantised(tmp_path / "dense", tiny("llama", **_WIDE), misnamed, config)
    with sentences.refused(UnsupportedModelError):
        exported(spec, Mask.of(0), tmp_path / "pruned")
