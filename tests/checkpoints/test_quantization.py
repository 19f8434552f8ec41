"""Names of modules in descriptions of quantised weights follow their layers."""

from __future__ import annotations

from typing import Any

from raysearch.checkpoints.kept_blocks import KeptBlocks
from raysearch.checkpoints.layer_names import LayerNames
from raysearch.checkpoints.quantization import ModuleNames

_TENSORS = [
    f"model.language_model.layers.{layer}.{part}.weight"
    for layer in range(5)
    for part in ("mlp.gate", "self_attn.q_proj")
]
_TENSORS += [f"model.visual.blocks.{block}.weight" for block in range(4)] + ["lm_head.weight"]


def mended(description: Any) -> Any:
    """Return a description for layers 0, 2 and 3 of four; layer 4 predicts a further token."""
    names = LayerNames.of(_TENSORS, 4)
    return ModuleNames.of(names, KeptBlocks.whole([0, 2, 3], 4), _TENSORS).mend(description)


def test_whole_and_partial_names_are_renumbered() -> None:
    before = [
        "lm_head",
        "model.language_model.layers.0.mlp.gate",
        "model.language_model.layers.1.mlp.gate",
        "model.language_model.layers.3.mlp.gate",
        "model.language_model.layers.4.mlp.gate",
        "model.layers.2.self_attn",
        "layers.3",
        "*layers.2*",
        "model.visual.blocks.1",
        "vision_tower.layers.1",
    ]
    after = [
        "lm_head",
        "model.language_model.layers.0.mlp.gate",
        "model.language_model.layers.2.mlp.gate",
        "model.language_model.layers.3.mlp.gate",
        "model.layers.1.self_attn",
        "layers.2",
        "*layers.1*",
        "model.visual.blocks.1",
        "vision_tower.layers.1",
    ]
    assert mended({"ignore": before}) == {"ignore": after}


def test_keys_and_nested_lists_are_renumbered_and_numbers_stay() -> None:
    before = {
        "quant_method": "modelopt",
        "bits": 4,
        "quantized_layers": {"model.language_model.layers.1.mlp.gate": {"bits": 8}, "layers.3.mlp.gate": {"bits": 4}},
        "config_groups": {"group_0": {"targets": ["Linear", "layers.2.mlp"], "weights": {"num_bits": 8}}},
    }
    assert mended(before) == {
        "quant_method": "modelopt",
        "bits": 4,
        "quantized_layers": {"layers.2.mlp.gate": {"bits": 4}},
        "config_groups": {"group_0": {"targets": ["Linear", "layers.1.mlp"], "weights": {"num_bits": 8}}},
    }


def test_an_expression_stays_if_it_matches_the_same_modules() -> None:
    assert mended([r"re:.*mlp\.gate", r"re:.*lm_head"]) == [r"re:.*mlp\.gate", r"re:.*lm_head"]
    layer_2 = r"model\.language_model\.layers\.1\.self_attn\.q_proj$"  # its number is 1 now
    assert mended([r"re:.*layers\.(1|2)\.self_attn.*"]) == [f"re:{layer_2}"]
    assert mended([r"re:.*layers\.1\..*"]) == []
    assert mended({r"-:.*layers\.(1|2)\.self_attn.*": {}}) == {f"-:{layer_2}": {}}
