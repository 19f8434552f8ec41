"""Each rule for values that depend on layers, in configs and in GGUF files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import pytest
from transformers import CONFIG_MAPPING, AutoConfig

from raysearch.checkpoints import llama_cpp
from raysearch.checkpoints.config_rules import changed_period, cut_config, cut_values
from raysearch.checkpoints.gguf_pruning import refusals
from raysearch.checkpoints.kept_blocks import KeptBlocks
from raysearch.checkpoints.layer_rules import PERIODS, RULES, KeptLayers, Kind, LayerRule, config_rule, gguf_rule
from raysearch.checkpoints.periods import Key
from raysearch.core.mask import Mask
from tests.checkpoints.test_gguf_pruning import metadata, pruned
from tests.models.conftest import write_llama

_LAYERS = KeptLayers([0, 2, 3], 4, n_predicting=1)
#: Values of a config of four layers, and of the same model without the layer 1.
_CONFIG: list[tuple[str, Any, Any]] = [
    ("eos_token_id", [1, 2, 3, 4], [1, 2, 3, 4]),
    ("num_nextn_predict_layers", 1, 1),
    ("ple_layer_ids", [1, 2, 4], [1, 3]),  # they start at 1
    ("per_layer_config", {"00": {"head_dim": 8}, "01": {}, "03": {}}, {"00": {"head_dim": 8}, "02": {}}),
    ("kv_source_layers", [None, None, 0, 1], [None, 0, None]),  # the last one's source is removed
    ("compress_ratios", [0, 4, 128, 4], [0, 128, 4]),
    ("compress_ratios", [0, 4, 128, 4, 0, 0], [0, 128, 4, 0, 0]),  # the last two are of heads that predict
    ("mlp_only_layers", [1, 3], [2]),
    ("full_attn_idxs", [0, 1, 2], [0, 1]),
    ("layer_types", ["a", "b", "c", "d"], ["a", "c", "d"]),
    ("layer_types", ["a", "b", "c", "d", "mtp"], ["a", "c", "d", "mtp"]),
    ("no_rope_layers", [1, 1, 0, 1], [1, 0, 1]),
    ("hybrid_override_pattern", "M-*M", "M*M"),
    ("sliding_window_pattern", "LLLG", "LLLG"),
    ("block_types", ["r", "a"], ["r", "r", "a"]),
    ("first_k_dense_replace", 2, 1),
    ("num_dense_layers", 1, 1),
    ("moe_layer_start_index", 3, 2),
    ("max_window_layers", 4, 3),
    ("num_hash_layers", 3, 2),
    ("moe_layer_end_index", 2, 1),
    ("moe_layer_end_index", -1, -1),
    ("scale_depth", 2.0, 3**0.5),
    (
        "sparse_attention_config",
        {"sparse_attention_freq": [0, 0, 1, 1], "sparse_block_size": 128},
        {"sparse_attention_freq": [0, 1, 1], "sparse_block_size": 128},
    ),
    ("linear_attn_config", {"full_attn_layers": [4], "kda_layers": [1, 2, 3]}, None),
    ("hidden_size", 4, 4),
]
#: The same for GGUF files; None if the file is refused.
_GGUF: list[tuple[str, Any, Any]] = [
    ("rope.dimension_sections", [1, 2, 1, 0], [1, 2, 1, 0]),
    ("nextn_predict_layers", 1, 1),
    ("of_tomorrow", [1, 2, 3, 4], [1, 3, 4]),
    ("of_tomorrow", [1, 2, 3, 4, 5], [1, 3, 4, 5]),
    ("rope.of_tomorrow", [1, 2], [1, 2]),
    ("leading_dense_block_count", 2, 1),
    ("hash_layer_count", 3, 2),
    ("ple.layers", [1, 2], None),
    ("embedding_length_per_layer_input", 8, None),
    ("embedding_length_per_layer_input", 0, 0),
    ("attention.shared_kv_layers", 2, None),
    ("rescale_every_n_layers", 2, None),
    ("n_deepstack_layers", 1, None),
    ("hrm.layers_per_stack", 2, None),
]


def test_every_rule_holds_for_a_config_or_a_file(tmp_path: Path) -> None:
    """The two tables have a value for each rule in each format."""
    config_rules = set[LayerRule | None]()
    for name, before, after in _CONFIG:
        config_rules.add(config_rule(name, before, _LAYERS))
        written = {name: before} | cut_values({name: before}, KeptBlocks.whole([0, 2, 3], 4), n_predicting=1)
        expected = {"full_attn_layers": [3], "kda_layers": [1, 2]} if name == "linear_attn_config" else after
        assert written[name] == (pytest.approx(expected) if isinstance(expected, float) else expected), name
    # Rules for one kind and several names, as of leading layers, are separate rules.
    assert config_rules - {None} == {rule for rule in RULES if rule.config is not None}
    gguf_rules = set[LayerRule | None]()
    for number, (key, before, after) in enumerate(_GGUF):
        gguf_rules.add(gguf_rule(key, before, _LAYERS))
        file = write_llama(tmp_path / f"{number}.gguf", 5, **{"nextn_predict_layers": 1, key: before})
        reasons = refusals(file, [Mask.of(1)])
        assert bool(reasons) == (after is None), (key, reasons)
        if after is not None:
            assert metadata(pruned(file, 1).out)[f"llama.{key}"] == after, key
    written_rules = {rule for rule in RULES if rule.gguf is not None}
    assert {(rule.kind, rule.gguf) for rule in gguf_rules if rule} == {(rule.kind, rule.gguf) for rule in written_rules}


def test_every_rule_names_families_that_have_its_key() -> None:
    architectures = {*gguf.MODEL_ARCH_NAMES.values(), *_newer_architectures()}
    wrong = []
    for rule in RULES:
        for family in rule.families:
            is_type = family in CONFIG_MAPPING
            if not is_type and family not in architectures:
                wrong.append(f"{family} is unknown")
            is_renamed = family in (
                "kimi_linear",
                "deepseek_v4",
                "minimax_m3_vl_text",
            )  # transformers reads the key into others
            if is_type and rule.config and not is_renamed and not hasattr(AutoConfig.for_model(family), rule.config):
                wrong.append(f"{family} has no {rule.config}")
        if rule.kind is Kind.FIXED and not rule.reason:
            wrong.append(f"{rule.gguf} is refused without a reason")
    assert not wrong, "\n".join(wrong)


def _newer_architectures() -> Iterator[str]:
    """Yield the architectures of llama.cpp that its Python package does not list yet."""
    for rule in llama_cpp.PERIODS:
        yield from rule.families or ()


@pytest.mark.parametrize(
    ("config", "mask", "expected"),
    [
        # Of the kept layers 0, 2 and 3 only the last had experts.
        ({"decoder_sparse_step": 2, "mlp_only_layers": []}, {1}, {"decoder_sparse_step": 1, "mlp_only_layers": [0, 1]}),
        ({"decoder_sparse_step": 1, "mlp_only_layers": [2]}, {1}, {"decoder_sparse_step": 1, "mlp_only_layers": [1]}),
        ({"decoder_sparse_step": 2}, set(), {"decoder_sparse_step": 2}),
        ({"interleave_moe_layer_step": 2}, {1}, {"interleave_moe_layer_step": 2, "moe_layers": [2]}),
        ({"interleave_moe_layer_step": 2}, {0, 1}, {"interleave_moe_layer_step": 2}),
        (
            {"interleave_moe_layer_step": 2, "moe_layers": [0, 2]},
            {1},
            {"interleave_moe_layer_step": 2, "moe_layers": [0, 1]},
        ),
    ],
)
def test_a_period_becomes_a_list(config: dict[str, Any], mask: set[int], expected: dict[str, Any]) -> None:
    kept = KeptBlocks.whole([layer for layer in range(4) if layer not in mask], 4)
    written = cut_config({"num_hidden_layers": 4, **config}, kept)
    assert written == {"num_hidden_layers": len(kept), **expected}
    assert changed_period(config, kept) is None


def test_a_period_that_no_list_replaces_is_kept_or_refused() -> None:
    """The table has a config for each such rule."""
    cases: dict[str, dict[str, Any]] = {
        "moe_layer_interval": {"model_type": "ernie4_5_moe", "moe_layer_interval": 2},
        "expert_layer_period": {"model_type": "jamba", "attn_layer_period": 1, "attn_layer_offset": 0},
        "attn_layer_period": {"model_type": "jamba", "attn_layer_period": 2, "attn_layer_offset": 1}
        | {"expert_layer_period": 1, "expert_layer_offset": 0},
        "n_layers_per_attn_res_block": {"model_type": "inkling2_text", "n_layers_per_attn_res_block": 2},
    }
    rules = {rule.key.config for rule in PERIODS if rule.as_list is None and rule.key is not None}
    assert rules == set(cases)
    for key, config in cases.items():
        for whole in (config, {"model_type": "outer", "text_config": config}):
            period = changed_period(whole, KeptBlocks.whole([1, 2, 3], 4))
            assert period is not None and period.rule.key == Key(key)
            assert period.text == "one in 2"
            assert changed_period(whole, KeptBlocks.whole([2, 3], 4)) is None, "whole periods are removed"
            assert changed_period(whole, KeptBlocks.whole([0, 1, 2], 4)) is None, "the last layer is removed"
    zamba = {"model_type": "zamba", "attn_layer_period": 2}
    assert changed_period(zamba, KeptBlocks.whole([1, 2, 3], 4)) is None, "it has a list"
