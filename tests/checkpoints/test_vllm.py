"""What vLLM would run in place of a pruned checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

from raysearch.checkpoints.vllm import misread_by_vllm
from raysearch.core.mask import Mask
from raysearch.core.site import Sites
from tests.models.families import N_LAYERS
from tests.models.test_export import dense, exported


def test_properties_that_vllm_derives_from_places(tmp_path: Path) -> None:
    windows = "derives which layers attend to a window only from their places, which have changed"
    experts = "derives which layers have experts from their places, which have changed"
    attention = "derives which layers attend to all tokens from their places, which have changed"
    llama4 = {"model_type": "llama4_text", "interleave_moe_layer_step": 2}
    deepseek = {"model_type": "deepseek_v3", "moe_layer_freq": 2}
    for config, mask, expected in (
        ({"model_type": "gpt_oss", "sliding_window": 128}, Mask.of(1), windows),
        ({"model_type": "gpt_oss", "sliding_window": 128}, Mask.of(1, 2), None),
        ({"model_type": "gpt_oss", "sliding_window": None}, Mask.of(1), None),
        ({"model_type": "llama4", "text_config": llama4}, Mask.of(0), experts),
        (llama4, Mask.of(0, 1), None),
        (llama4, Mask.of(N_LAYERS - 1), None),  # the last layer, so no other layer moves
        ({"model_type": "qwen3_moe", "decoder_sparse_step": 1}, Mask.of(0), None),
        ({"model_type": "qwen3_moe", "decoder_sparse_step": 2}, Mask.of(0), experts),
        (deepseek, Mask.of(0), experts),
        ({"model_type": "deepseek_v3", "moe_layer_freq": [0, 1, 1, 1]}, Mask.of(0), None),
        ({"model_type": "bailing_hybrid", "layer_group_size": 2}, Mask.of(0), attention),
        ({"model_type": "llama", "decoder_sparse_step": 2}, Mask.of(0), None),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert misread_by_vllm(tmp_path, mask, Sites.of_equal_layers(N_LAYERS)) == expected, (config, mask)


def test_the_card_leaves_out_vllm_if_it_would_run_another_model(tmp_path: Path) -> None:
    spec = dense("gpt_oss", tmp_path)
    out = tmp_path / "out"
    for mask, fits in ((Mask.of(0, 1), True), (Mask.of(0), False)):
        done = exported(spec, mask, out, overwrite=True)
        card = (out / "README.md").read_text()
        assert ("vllm serve" in card, done.misread_by_vllm is None) == (fits, fits)
        assert ("vLLM would run another model: it derives which layers attend to a window only" in card) is not fits
