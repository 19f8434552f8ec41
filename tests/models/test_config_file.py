"""The config of an export has the names of its source, with the values of the kept layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from raysearch.core.mask import Mask
from raysearch.models.spec import ModelSpec
from tests.cases import assert_each
from tests.models.families import (
    _DELTA,
    _EXPERTS,
    _HEAD,
    _ROUTED,
    _SLIDING,
    _VISION,
    _WIDTHS,
    N_LAYERS,
    UNEXPORTABLE,
    tiny,
)
from tests.models.test_export import exported

_SECOND = Mask.of(1)
_LLAMA3 = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA3 |= {"original_max_position_embeddings": 64}
_NEMOTRON_H = {"mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 8, "n_groups": 1, "head_dim": 8}
_GRANITE = {"mamba_d_state": 8, "mamba_n_groups": 1, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_expand": 2}
_GRANITE |= {"num_local_experts": 0, "num_experts_per_tok": 0, "shared_intermediate_size": 48}


def config_of(
    tmp_path: Path, kind: str, settings: dict[str, Any], older: dict[str, Any], mask: Mask = _SECOND
) -> dict[str, Any]:
    """Return the config of an export of a tiny model. `older` replaces keys of its config; None removes a key."""
    folder = tmp_path / "dense"
    tiny(kind, **settings).save_pretrained(folder)
    file = folder / "config.json"
    config = {**json.loads(file.read_text()), **older}
    file.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))
    exported(ModelSpec(kind, str(folder)), mask, tmp_path / "pruned", overwrite=True)
    written: dict[str, Any] = json.loads((tmp_path / "pruned" / "config.json").read_text())
    return written


def test_rotary_embeddings_have_the_keys_of_both_versions(tmp_path: Path) -> None:
    """transformers 4 and 5 have different keys for them, and use defaults for missing keys."""
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    local = {"sliding_attention": {"rope_type": "default", "rope_theta": 7e2}}
    scaled = {"rope_type": "linear", "factor": 8.0}
    default = {"rope_type": "default", "rope_theta": 7e3}
    short = {"rope_type": "longrope", "short_factor": [1.0] * 2, "long_factor": [4.0] * 2, "factor": 4.0}
    short |= {"original_max_position_embeddings": 4096}  # the default of its class

    def check(case: tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]) -> None:
        kind, rope, older, expected = case
        settings = {**_WIDTHS, "rope_parameters": rope}
        settings |= {**_HEAD, **_SLIDING} if "sliding_attention" in rope else {}
        written = config_of(tmp_path, kind, settings, older)
        assert {name: written.get(name) for name in expected} == expected
        read = AutoConfig.from_pretrained(tmp_path / "pruned").rope_parameters
        assert written["rope_parameters"] == read == AutoConfig.from_pretrained(tmp_path / "dense").rope_parameters

    llama = {"rope_theta": 5e5, "rope_scaling": _LLAMA3}
    gemma = {"rope_theta": 7e3, "rope_local_base_freq": 7e2, "rope_scaling": scaled}
    cases: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]]
    cases = [
        ("llama", {**_LLAMA3, "rope_theta": 5e5}, {}, llama),
        ("llama", {**_LLAMA3, "rope_theta": 5e5}, {"rope_parameters": None, **llama}, llama),
        ("qwen3", default, {}, {"rope_theta": 7e3, "rope_scaling": None}),
        ("phi", {**yarn, "rope_theta": 7e3, "partial_rotary_factor": 0.5}, {}, {"partial_rotary_factor": 0.5}),
        ("phi3", {**short, "rope_theta": 7e3, "partial_rotary_factor": 0.5}, {}, {"rope_scaling": short}),
        ("gpt_neox", {**default, "partial_rotary_factor": 0.5}, {}, {"rotary_emb_base": 7e3, "rotary_pct": 0.5}),
        ("gemma3_text", {**local, "full_attention": {**scaled, "rope_theta": 7e3}}, {}, gemma),
        (
            "gemma3_text",
            {**local, "full_attention": {**scaled, "rope_theta": 7e3}},
            {"rope_parameters": None, **gemma},
            gemma,
        ),
    ]
    assert_each(cases, check)


def test_the_dtype_has_both_names(tmp_path: Path) -> None:
    for older in ({}, {"dtype": None, "torch_dtype": "float32"}):
        written = config_of(tmp_path, "llama", _WIDTHS, older)
        assert (written["dtype"], written["torch_dtype"]) == ("float32", "float32")


def test_the_parts_of_a_multimodal_model_have_the_keys_of_both_versions(tmp_path: Path) -> None:
    parts = {"text_config": {**_WIDTHS, **_HEAD, **_SLIDING}, "vision_config": _VISION, "mm_tokens_per_image": 4}
    text = config_of(tmp_path, "gemma3", parts, {})["text_config"]
    assert (text["rope_theta"], text["rope_local_base_freq"]) == (1e6, 1e4)
    assert (text["num_hidden_layers"], len(text["layer_types"])) == (N_LAYERS - 1, N_LAYERS - 1)


def test_kinds_of_layers_keep_the_names_of_the_source(tmp_path: Path) -> None:
    """Converters read these names, and not those of a later transformers."""
    kinds = ["linear_attention", "mlp", "full_attention", "linear_attention"]
    mask = Mask.of(0)
    older: dict[str, Any] = {
        "layers_block_type": None,
        "mtp_layers_block_type": None,
        "hybrid_override_pattern": "M-*M",
    }
    older |= {"num_hidden_layers": N_LAYERS, "num_experts_per_tok": None}
    written = config_of(tmp_path, "nemotron_h", {**_WIDTHS, **_NEMOTRON_H, "layers_block_type": kinds}, older, mask)
    assert (written["hybrid_override_pattern"], written["num_hidden_layers"]) == ("-*M", N_LAYERS - 1)
    assert not {"layers_block_type", "num_experts_per_tok"} & set(written)
    kinds = ["mamba", "mamba", "attention", "attention"]
    for name in ("layer_types", "layers_block_type"):
        settings = {**_WIDTHS, **_GRANITE, "layer_types": kinds}
        written = config_of(tmp_path, "granitemoehybrid", settings, {"layer_types": None, name: kinds}, mask)
        assert written[name] == kinds[1:]


def test_the_number_of_layers_keeps_the_name_of_the_source(tmp_path: Path) -> None:
    gpt2 = {"n_layer": N_LAYERS, "n_embd": 32, "n_head": 4, "vocab_size": 128, "n_positions": 64}
    for kind, settings, name in (("gpt2", gpt2, "n_layer"), ("llama", _WIDTHS, "num_hidden_layers")):
        written = config_of(tmp_path, kind, settings, {})
        assert written[name] == N_LAYERS - 1
        assert {"n_layer", "num_hidden_layers"} & {*written} == {name}
        assert AutoConfig.from_pretrained(tmp_path / "pruned").num_hidden_layers == N_LAYERS - 1


def test_a_config_has_no_more_keys_than_its_source(tmp_path: Path) -> None:
    """The keys of the other version of transformers are an exception."""
    older = {"rope_theta": 1e4, "rope_parameters": None, "dtype": None, "torch_dtype": "float32", "unknown": [1, 2]}
    written = config_of(tmp_path, "llama", _WIDTHS, older)
    source = json.loads((tmp_path / "dense" / "config.json").read_text())
    assert set(written) - set(source) == {"dtype", "rope_parameters", "rope_scaling"}
    assert {name: value for name, value in source.items() if written[name] != value} == {"num_hidden_layers": N_LAYERS}


_LLAMA4 = {**_WIDTHS, "head_dim": 8, "num_local_experts": 2, "intermediate_size_mlp": 48, "attention_chunk_size": 8}


@pytest.mark.parametrize(
    ("kind", "settings", "period", "expected"),
    [
        ("gemma2", {"sliding_window": 4}, {}, {"layer_types": ["sliding_attention"] * 2 + ["full_attention"]}),
        (
            "gemma3_text",
            {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"] * 2},
            {"sliding_window_pattern": 2},
            {"layer_types": ["sliding_attention"] * 2 + ["full_attention"]},
        ),
        (
            "qwen3_next",
            {**_EXPERTS, **_DELTA, "shared_expert_intermediate_size": 16}
            | {"layer_types": ["linear_attention", "full_attention"] * 2},
            {"full_attention_interval": 2},
            {"layer_types": ["linear_attention"] * 2 + ["full_attention"]},
        ),
        ("llama4_text", _LLAMA4, {"interleave_moe_layer_step": 2}, {"moe_layers": [2], "no_rope_layers": [1, 1, 0]}),
    ],
)
def test_values_that_depend_on_places_are_written_if_they_would_change(
    kind: str, settings: dict[str, Any], period: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    """In the source, every second layer is of another kind, by a period; the export has a list of these layers."""
    older = {**dict.fromkeys(("layer_types", "moe_layers", "no_rope_layers")), **period}
    written = config_of(tmp_path, kind, {**_WIDTHS, **_HEAD, **settings, **period}, older, Mask.of(1))
    assert {name: written[name] for name in expected} == expected


def test_a_period_that_cannot_be_written_stays_if_the_mask_keeps_it(tmp_path: Path) -> None:
    spec = ModelSpec("jamba", str(tmp_path / "dense"))
    UNEXPORTABLE["jamba"]().save_pretrained(tmp_path / "dense")
    for mask in (Mask.of(0, 1), Mask.of(3)):
        done = exported(spec, mask, tmp_path / "pruned", overwrite=True)
        assert done.max_logit_difference is not None and done.max_logit_difference < 1e-6


def test_missing_predicting_heads_are_not_counted(tmp_path: Path) -> None:
    """transformers does not load heads that predict more than one token; converters and servers would expect them."""
    glm = {**_WIDTHS, **_HEAD, **_ROUTED, "first_k_dense_replace": 2}
    kinds = ["linear_attention", "mlp", "full_attention", "linear_attention"]
    nemotron = {**_WIDTHS, **_NEMOTRON_H, "layers_block_type": kinds}

    def check(case: tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]) -> None:
        kind, settings, older, expected = case
        written = config_of(tmp_path, kind, settings, older)
        assert {name: written[name] for name in expected} == expected

    minimax = {"use_mtp": True, "num_mtp_modules": 3, "mtp_transformer_layers": 1}
    pattern = {"num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E", "mtp_layers_block_type": None}
    cases: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]]
    cases = [
        ("glm4_moe", glm, {"num_nextn_predict_layers": 1}, {"num_nextn_predict_layers": 0}),
        ("llama", _WIDTHS, {"mtp_num_hidden_layers": 1}, {"mtp_num_hidden_layers": 0}),
        ("llama", _WIDTHS, minimax, {"use_mtp": False, "num_mtp_modules": 0, "mtp_transformer_layers": 0}),
        (
            "nemotron_h",
            nemotron,
            pattern,
            {"num_nextn_predict_layers": 0, "mtp_hybrid_override_pattern": ""},
        ),
        (
            "nemotron_h",
            nemotron,
            {"num_nextn_predict_layers": 1, "mtp_layers_block_type": ["attention", "moe"]},
            {"num_nextn_predict_layers": 0, "mtp_layers_block_type": []},
        ),
    ]
    assert_each(cases, check)
