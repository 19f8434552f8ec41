"""Quantised models: those that transformers dequantises are exported in 16 bits, others in their quantisation."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from raysearch.core.mask import Mask
from raysearch.errors import UnsupportedModelError
from raysearch.models.loading import describe
from raysearch.models.spec import ModelSpec
from raysearch.searching.events import WarningRaised
from raysearch.searching.notices import warn_of_export
from raysearch.searching.observer import Observer
from tests.cases import assert_each
from tests.models.families import _EXPERTS, _HEAD, _MLA, _ROUTED, _WIDTHS, N_LAYERS, tiny
from tests.models.test_export import exported
from tests.sentences import Sentences

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


def fp8(folder: Path, model: Any) -> ModelSpec:
    """Quantise like Qwen3-30B-A3B-FP8: blocks of 128 by 128 share a scale; router, embedding and head stay."""

    def convert(name: str, values: Tensor) -> dict[str, Tensor]:
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

    blocks = {"quant_method": "fp8", "weight_block_size": [_BLOCK, _BLOCK], "activation_scheme": "dynamic"}
    return quantised(folder, model, convert, blocks)


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


def test_a_dequantised_model_is_exported_in_16_bits(tmp_path: Path) -> None:
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
        done = exported(spec, Mask.of(1, 2), out)
        assert (done.n_layers, done.max_logit_difference) == (N_LAYERS - 2, 0)
        assert "quantization_config" not in json.loads((out / "config.json").read_text())
        weights = load_file(out / "model.safetensors")
        assert {values.dtype for values in weights.values()} <= {torch.bfloat16, torch.float32}
        source = load_file(Path(spec.path) / "model.safetensors")
        source_names = {name.removesuffix("_blocks") for name in source if not name.endswith(("_scales", "_scale_inv"))}
        assert set(weights) <= source_names, "each weight has its source's name"

    assert_each(specs, check)


def test_four_bits_stay_four_bits(tmp_path: Path) -> None:
    tiny("llama", **_WIDE).save_pretrained(tmp_path / "plain")
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "plain", quantization_config=config)
    model.save_pretrained(tmp_path / "dense")
    done = exported(ModelSpec("tiny", str(tmp_path / "dense")), Mask.of(1, 2), tmp_path / "pruned")
    assert (done.n_layers, done.max_logit_difference) == (N_LAYERS - 2, 0)
    assert json.loads((tmp_path / "pruned" / "config.json").read_text())["quantization_config"]["load_in_4bit"]
    source = load_file(tmp_path / "dense" / "model.safetensors")
    written = load_file(tmp_path / "pruned" / "model.safetensors")
    last = "model.layers.{}.mlp.down_proj.weight"
    assert torch.equal(written[last.format(1)], source[last.format(3)])
    assert written[last.format(1)].dtype == torch.uint8


def test_an_error_of_writing_becomes_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sentences: Sentences
) -> None:
    def save_pretrained(*_: Any, **__: Any) -> None:
        raise ValueError("The model is quantized with quanto and is not serializable")

    tiny("llama", **_WIDE).save_pretrained(tmp_path / "dense")
    monkeypatch.setattr("transformers.PreTrainedModel.save_pretrained", save_pretrained)
    with sentences.refused(UnsupportedModelError):
        exported(ModelSpec("tiny", str(tmp_path / "dense")), Mask.of(1), tmp_path / "pruned")


def test_a_quantisation_that_cannot_be_written_is_known_before_a_search(tmp_path: Path) -> None:
    tiny("llama", **_WIDE).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    four_bits = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    for quantisation, unwritable in (
        (None, None),
        ({"quant_method": "quanto", "weights": "int8"}, "quanto"),
        ({"quant_method": "fp8", "weight_block_size": [_BLOCK, _BLOCK]}, None),
        ({"quant_method": "mxfp4"}, None),
        (four_bits, None),
        ({"quant_method": "unheard of"}, None),
    ):
        values = config if quantisation is None else config | {"quantization_config": quantisation}
        (tmp_path / "config.json").write_text(json.dumps(values))
        assert describe(ModelSpec("tiny", str(tmp_path))).unwritable == unwritable, quantisation
    messages: list[str] = []

    class Listener(Observer):
        def on_warning_raised(self, event: WarningRaised) -> None:
            messages.append(event.message)

    (tmp_path / "config.json").write_text(json.dumps(config))
    info = describe(ModelSpec("tiny", str(tmp_path)))
    for unwritable in (None, "quanto"):
        warn_of_export(replace(info, unwritable=unwritable), Listener())
    assert len(messages) == 1
    assert "quantised by quanto, so the result of this search cannot be exported" in messages[0]
