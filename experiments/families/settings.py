"""What families need besides the rules of `shrinking`, by dotted path in their configs."""

from __future__ import annotations

from typing import Any

_HEAD = {"head_dim": 16}
_KINDS = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"] * 2
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}

#: Families whose models hand values to their layers by the layers' places: embeddings by layer, kinds of masks.
BY_PLACE = ("gemma4", "gemma4_text", "gemma3n", "gemma3n_text")

_SLIDING = {
    **{f"swa_{name}": 2 for name in ("num_attention_heads", "num_key_value_heads")},
    **{f"swa_{name}": 8 for name in ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "v_head_dim")},
    "swa_head_dim": 16,
    "shared_experts_intermediate_size": 16,
}
_INDEXED = {
    **{"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 16},
    **{"indexer_budget": 8, "indexer_compress_ratio": 2, "hc_count": 2, "ple_layer_ids": [1, 6]},
    **{"ngram_size": 2, "heads_per_ngram": 2, "ngram_vocab_size_base": 100, "split_ngram_parts": 2},
    "eos_token_id": 2,
    "make_ngram_vocab_size_divisible_by": 8,
}
_NEMOTRON = ["linear_attention", "moe", "full_attention", "mlp"] * 2
_TEXT_MROPE = {"text_config.rope_parameters": _ROPE | {"mrope_section": [2, 3, 3]}}
_OCR_MOE = {
    "text_config.num_experts_per_tok": 2,
    "text_config.mlp_layer_types": ["dense"] + ["sparse"] * 7,
    "text_config.n_group": 1,
    "text_config.topk_group": 1,
}

SETTINGS: dict[str, dict[str, Any]] = {
    "blt": {"encoder_hash_byte_group_vocab": 100},
    "chameleon": {"vocabulary_map": {"<image>": 150}},
    "cohere_compass_text": {"layer_types": _KINDS, "rope_parameters": dict.fromkeys(set(_KINDS), _ROPE)},
    "cohere_compass": {
        "text_config.layer_types": _KINDS,
        "text_config.rope_parameters": dict.fromkeys(set(_KINDS), _ROPE),
    },
    "dbrx": {"attn_config.rope_theta": 10000.0, "attn_config.clip_qkv": 8.0, "attn_config.kv_n_heads": 2},
    "deepseek_ocr2": _OCR_MOE,
    "deepseek_v2": {"num_experts_per_tok": 2, "first_k_dense_replace": 1},
    "dots1": {"n_shared_experts": 1, "n_routed_experts": 4, "num_experts_per_tok": 2, "first_k_dense_replace": 1},
    "dots3_note_text": _SLIDING,
    "dots3_note": {f"text_config.{name}": value for name, value in _SLIDING.items()}
    | {"vision_config.pyramid_num_routed": [-1, 4], "audio_config.adapter_input_size": 64},
    "emu3": {"vocabulary_map": {"<|extra_200|>": 150, "<image>": 151}},
    "ernie4_5_vl_moe": {
        "text_config.moe_intermediate_size": [16, 16],
        "text_config.rope_parameters": _ROPE | {"mrope_section": [3, 3, 2]},
    },
    "falcon_h1": {"mamba_d_ssm": 128},
    "florence2": {
        "vision_config.depths": [1, 1],
        "vision_config.embed_dim": [32, 64],
        "vision_config.num_heads": [2, 4],
        "vision_config.num_groups": [2, 4],
        "vision_config.patch_size": [7, 3],
        "vision_config.patch_stride": [4, 2],
        "vision_config.patch_padding": [3, 1],
        "vision_config.patch_prenorm": [False, True],
    },
    "fun_asr_nano": {"adaptor_config.intermediate_size": 16},
    "gemma3n_text": {"num_kv_shared_layers": 2, "intermediate_size": 48, "activation_sparsity_pattern": [0.0] * 8},
    "glm46v": _TEXT_MROPE,
    "glm4v": _TEXT_MROPE,
    "glm4v_moe": {"text_config.rope_parameters": _ROPE | {"mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5}},
    "glm5_next": {"text_config.index_topk": 16, "text_config.index_kpool": 4},
    "glm_ocr": _TEXT_MROPE,
    "glmga": _TEXT_MROPE,
    "gpt_neo": {
        "attention_types": [[["global", "local"], 4]],
        "attention_layers": ["global", "local"] * 4,
        "window_size": 8,
    },
    "granite4_vision": {
        "deepstack_layer_map": [[-2, 1], [-1, 2]],
        "spatial_target_layers": [1, 2, 5, 5],
        "downsample_rate": "1/2",
    },
    "hunyuan_v1_dense": _HEAD,
    "hunyuan_v1_moe": _HEAD,
    "hunyuan_vl": {"text_config.head_dim": 16, "text_config.rope_parameters": _ROPE | {"mrope_section": [2, 2, 2, 2]}},
    "inkling_mm_model": {"vision_config.patch_size": 4},
    "kyutai_speech_to_text": {"codec_config.upsample_groups": 64, "codec_config.num_filters": 2},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 2},
    "mamba2": {"num_heads": 8},
    "ministral": _HEAD | {"layer_types": ["full_attention", *_KINDS[:3]] * 2},
    "molmo2": {"adapter_config.vision_feature_layer": [-1, -2]},
    "muse_spark": {
        "audio_config.num_hidden_layers": 4,
        "audio_config.hidden_sizes": [16, 32, 32, 64],
        "audio_config.depths": [1, 1, 1, 1],
    },
    "nemo_speechlm": {
        "audio_config.diarization_config.head_config.audio_hidden_size": 64,
        "text_config.layers_block_type": _NEMOTRON,
    },
    "nemotron": {"num_key_value_heads": 2},
    "nemotron_h": {"layers_block_type": _NEMOTRON},
    "nemotron_h_omni": {
        "vision_config.video_temporal_patch_size": 2,
        "text_config.layers_block_type": _NEMOTRON,
    },
    "paddleocr_vl": _TEXT_MROPE,
    "qwen2_5_omni": {"token2wav_config.bigvgan_config.upsample_initial_channel": 64},
    "qwen2_5_omni_thinker": _TEXT_MROPE | {"vision_start_token_id": 150, "audio_start_token_id": 151},
    "qwen2_5_vl": _TEXT_MROPE,
    "qwen2_vl": _TEXT_MROPE,
    "qwen4_exp": {f"text_config.{name}": value for name, value in _INDEXED.items()},
    "qwen4_exp_text": _INDEXED,
    "qwen3_omni_moe_thinker": {"vision_start_token_id": 150, "audio_start_token_id": 151},
    "reformer": {
        "is_decoder": True,
        "attn_layers": ["local", "lsh"] * 4,
        "axial_pos_embds_dim": [16, 48],
        "axial_pos_shape": [16, 32],
    },
    "roc_bert": {"shape_vocab_size": 64, "pronunciation_vocab_size": 64},
    "step3p7": {"text_config.layer_types": _KINDS, "text_config.sliding_window": 8},
    "vibevoice_asr": {
        f"{part}_tokenizer_encoder_config.{name}": value
        for part in ("acoustic", "semantic")
        for name, value in (("num_filters", 2), ("depths", [1] * 7))
    },
    "xmod": {"default_language": "en_XX"},
    "zamba": {"attention_hidden_size": 128},
    "zamba2": {"layers_block_type": ["linear_attention", "linear_attention", "linear_attention", "hybrid"] * 2},
    "zaya": {"num_experts_per_tok": 1},
}
