"""What families need besides the rules of `shrinking`, by dotted path in their configs."""

from __future__ import annotations

from typing import Any

_HEAD = {"head_dim": 8}
_KINDS = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"] * 2
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}

#: Families whose models hand values to their layers by the layers' places: embeddings by layer, kinds of masks.
BY_PLACE = ("gemma4", "gemma4_text", "gemma3n", "gemma3n_text")

SETTINGS: dict[str, dict[str, Any]] = {
    "blt": {"encoder_hash_byte_group_vocab": 100},
    "chameleon": {"vocabulary_map": {"<image>": 150}},
    "cohere_compass_text": {"layer_types": _KINDS, "rope_parameters": dict.fromkeys(set(_KINDS), _ROPE)},
    "cohere_compass": {
        "text_config.layer_types": _KINDS,
        "text_config.rope_parameters": dict.fromkeys(set(_KINDS), _ROPE),
    },
    "cosmos3_edge": {"text_config.rope_parameters": _ROPE | {"mrope_section": [2, 1, 1]}},
    "dbrx": {"attn_config.rope_theta": 10000.0},
    "deepseek_ocr2": {"text_config.num_experts_per_tok": 2},
    "dots1": {"n_shared_experts": 1, "n_routed_experts": 4, "num_experts_per_tok": 2, "first_k_dense_replace": 1},
    "ernie4_5_vl_moe": {"text_config.moe_intermediate_size": [16, 16]},
    "falcon_h1": {"mamba_d_ssm": 64},
    "florence2": {
        "vision_config.depths": [1, 1],
        "vision_config.embed_dim": [16, 32],
        "vision_config.num_heads": [2, 4],
        "vision_config.num_groups": [2, 4],
        "vision_config.patch_size": [7, 3],
        "vision_config.patch_stride": [4, 2],
        "vision_config.patch_padding": [3, 1],
        "vision_config.patch_prenorm": [False, True],
    },
    "fun_asr_nano": {"adaptor_config.intermediate_size": 8},
    "gemma3n_text": {"num_kv_shared_layers": 2, "intermediate_size": 48, "activation_sparsity_pattern": 0.0},
    "gemma4_assistant": {"text_config.hidden_size_per_layer_input": 0},
    "gpt_neo": {"attention_types": [[["global", "local"], 4]], "window_size": 8, "attention_layers": None},
    "hunyuan_v1_dense": _HEAD,
    "hunyuan_v1_moe": _HEAD,
    "hunyuan_vl": {"text_config.head_dim": 8},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 2},
    "mamba2": {"num_heads": 8},
    "ministral": _HEAD | {"layer_types": ["full_attention", *_KINDS[:3]] * 2},
    "molmo2": {"adapter_config.vision_feature_layer": [-1, -2]},
    "nemotron": {"num_key_value_heads": 2},
    "nemotron_h_omni": {"vision_config.video_temporal_patch_size": 2},
    "reformer": {"is_decoder": True},
    "roc_bert": {"shape_vocab_size": 64, "pronunciation_vocab_size": 64},
    "zamba2": {"layers_block_type": ["linear_attention", "linear_attention", "linear_attention", "hybrid"] * 2},
    "zaya": {"num_experts_per_tok": 1},
}
