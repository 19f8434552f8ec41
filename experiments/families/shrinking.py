"""Makes the config of a tiny model with the per-layer structure of its family.

Widths, heads, experts and vocabularies become small by their names. What says which layer is of which kind stays:
lists by layer are cut after some periods, and windows become shorter than the texts. `settings.py` has what a family
needs besides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from transformers import AutoConfig, PreTrainedConfig

N_LAYERS = 8  #: of the decoder: two periods of four
N_TOWER_LAYERS = 2  #: of each other stack, so that it is not taken for the decoder
VOCABULARY = 192
N_TEXT_IDS = 128  #: texts have ids below; special ids, such as those of images, lie above
WIDTH = 64
HEAD_WIDTH = 16
WINDOW = 8  #: of attention, in tokens
POSITIONS = 512

_DEPTHS = (
    *("num_hidden_layers", "n_layers", "n_layer", "num_layers", "num_blocks", "depth", "layers"),
    *("encoder_layers", "decoder_layers", "num_encoder_layers", "num_decoder_layers", "conf_num_hidden_layers"),
)
#: The parts of a config that describe a decoder of text, and those that hold such a part.
_DECODERS = ("text_config", "llm_config", "language_config", "thinker_config", "decoder", "decoder_config")
_WIDTHS = (
    *("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "width", "hidden_dim", "emb_dim", "out_hidden_size"),
    *("projection_dim", "text_hidden_size", "encoder_hidden_size", "projector_hidden_size", "vision_hidden_size"),
    *("output_proj_dims", "backbone_hidden_size", "lru_width", "mm_embed_dim", "audio_embed_dim", "output_dim"),
    *("mamba_d_ssm", "thinker_hidden_size", "embedding_size", "d_embed", "word_embed_proj_dim", "input_embedding_size"),
    *(
        "vision_output_dim",
        "image_text_hidden_size",
        "hidden_size_global",
        "output_embedding_size",
        "attention_hidden_size",
    ),
    *(
        "projector_output_dim",
        "adapter_out_dim",
        "adapter_in_dim",
        "latent_size",
        "dim_model_base",
        "qformer_hidden_size",
    ),
)
_INNER_WIDTHS = (
    *("intermediate_size", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "moe_intermediate_size", "n_inner"),
    *("ffn_hidden_size", "shared_expert_intermediate_size", "shared_intermediate_size", "mlp_dim", "d_ff", "dim_ff"),
    *("dff", "feed_forward_size", "expert_ffn_hidden_size", "projection_intermediate_size", "projection_hidden_dim"),
    *("intermediate_size_mlp", "moe_hidden_size", "dense_intermediate_size", "moe_shared_expert_intermediate_size"),
    *(
        "alignment_intermediate_size",
        "shared_experts_intermediate_size",
        "adapter_intermediate_size",
        "share_expert_dim",
    ),
    *(
        "projector_intermediate_size",
        "block_ff_dim",
        "adapter_intermediate_size",
        "projection_hidden_size",
        "patch_embed_hidden_size",
    ),
)
_HEADS = (
    *("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads"),
    *("attention_heads", "conf_num_attention_heads", "swa_num_attention_heads", "num_encoder_attention_heads"),
    *("num_decoder_attention_heads", "resampler_n_heads", "resampler_heads", "num_attention_heads_per_layer"),
)
_KEY_HEADS = ("num_key_value_heads", "kv_n_heads", "swa_num_key_value_heads", "num_global_key_value_heads")
_HEAD_WIDTHS = (
    *("head_dim", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "swa_head_dim", "swa_v_head_dim", "d_kv"),
    *("linear_key_head_dim", "linear_value_head_dim", "linear_head_dim", "dim_head", "kv_channels", "global_head_dim"),
    *("attention_head_size", "resampler_head_dim", "resampler_dim_head", "hidden_size_per_layer_input"),
)
_RANKS = ("kv_lora_rank", "q_lora_rank", "o_lora_rank", "laurel_rank", "hc_lowrank", "adapter_rank", "gated_norm_rank")
_EXPERTS = (
    *("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "zero_expert_num"),
    *("num_routed_experts", "n_experts"),
)
_CHOSEN = ("num_experts_per_tok", "moe_topk", "moe_k", "moe_top_k", "top_k_experts", "num_experts_per_token")
_EXACT: dict[str, Any] = {
    **dict.fromkeys(_WIDTHS, WIDTH),
    **dict.fromkeys(_INNER_WIDTHS, 48),
    **dict.fromkeys(_HEADS, 4),
    **dict.fromkeys(_HEAD_WIDTHS, HEAD_WIDTH),
    **dict.fromkeys(_RANKS, 8),
    **dict.fromkeys(_EXPERTS, 4),
    **dict.fromkeys(_CHOSEN, 2),
    **dict.fromkeys(("sliding_window", "sliding_window_size", "attention_window_size", "local_attention"), WINDOW),
    **dict.fromkeys(("attention_chunk_size", "window_size_text"), WINDOW),
    **dict.fromkeys(("vocab_size_per_layer_input", "type_vocab_size_text", "unpadded_vocab_size"), VOCABULARY),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length"), POSITIONS),
    **{"image_size": 28, "patch_size": 14, "spatial_merge_size": 2, "num_position_embeddings": 16},
    **{"n_group": 2, "topk_group": 1, "num_mel_bins": 16, "max_source_positions": 32, "num_codebooks": 4},
    **{"vision_feature_layer": -1, "spatial_vision_layer": -1, "num_query_tokens": 4, "codebook_size": 64},
    **{"index_n_heads": 2, "index_head_dim": 16, "index_topk": 8, "rotary_dim": 8, "block_multiple_of": 16},
    **{"mamba_d_state": 8, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_dt_rank": 4, "mamba_headdim": 16},
    **{"mamba_num_heads": 8, "mamba_head_dim": 16, "n_mamba_heads": 8, "mamba_n_groups": 1, "mamba_ngroups": 1},
    **{"ssm_state_size": 8, "state_size": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4},
    **{"linear_num_heads": 4, "time_step_rank": 4, "n_groups": 1, "num_patches": 4, "image_token_embed_dim": WIDTH},
    **{"original_max_position_embeddings": 256, "num_embeddings": 64, "base_channels": 32, "latent_channels": 4},
}


def tiny_config(model_type: str, settings: Mapping[str, Any]) -> PreTrainedConfig:
    """Return the config of a tiny model.

    Args:
        model_type: The family.
        settings: The values that the family needs besides, by dotted path; None leaves the default.
    """
    config = AutoConfig.for_model(model_type)
    values = _small(config, is_decoder=True)
    if hasattr(config, "is_decoder"):  # encoders that are also made as decoders
        values["is_decoder"] = True
    for path, value in settings.items():
        *parts, name = path.split(".")
        place = values
        for part in parts:
            place = place[part]
        place[name] = value
    values.pop("model_type", None)
    return AutoConfig.for_model(model_type, **values)


def decoder_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """Return the innermost part of a config that describes the decoder of text."""
    for name in _DECODERS:
        part = getattr(config, name, None)
        if isinstance(part, PreTrainedConfig):
            return decoder_config(part)
    return config


def _small(config: PreTrainedConfig, is_decoder: bool) -> dict[str, Any]:
    """Return the settings of a small config of the same class."""
    values: dict[str, Any] = {"model_type": config.model_type}
    defaults = {field.name: field.default for field in dataclasses.fields(type(config))}
    fields = {stored: name for name, stored in config.attribute_map.items() if name in defaults}
    decoders = [name for name in _DECODERS if isinstance(getattr(config, name, None), PreTrainedConfig)]
    for name, value in vars(config).items():
        if isinstance(value, PreTrainedConfig):
            values[name] = _small(value, is_decoder and name in decoders[:1])
            continue
        field = name if name in defaults else fields.get(name)
        if field is None or value is None:
            continue
        new = _small_value(field, value, defaults[field], config, is_decoder and not decoders)
        if new is not None:
            values[field] = new
    return values


def _small_value(name: str, value: Any, default: Any, config: PreTrainedConfig, is_decoder: bool) -> Any:
    """Return a small value of a setting; None to leave it as it is."""
    if name in _DEPTHS:
        return (N_LAYERS if is_decoder else N_TOWER_LAYERS) if isinstance(value, int) else None
    if name.endswith(("token_id", "token_index")) and isinstance(value, int) and value >= N_TEXT_IDS:
        return N_TEXT_IDS + sum(map(ord, name)) % (VOCABULARY - N_TEXT_IDS)
    if name.endswith(("token_id", "token_ids")) and isinstance(value, (list, tuple)):
        return (
            [N_TEXT_IDS + index for index, _ in enumerate(value)]
            if any(isinstance(item, int) and item >= N_TEXT_IDS for item in value)
            else None
        )
    if name in ("vocab_size", "vocabulary_size") and isinstance(value, int):
        return VOCABULARY
    if name in _KEY_HEADS and isinstance(value, int):
        heads = next((vars(config)[head] for head in _HEADS if isinstance(vars(config).get(head), int)), value)
        return 1 if value == 1 else 4 if value >= heads else 2
    if name in _EXACT and isinstance(value, int) and not isinstance(value, bool):
        return _EXACT[name] if value else None
    if name == "rope_parameters" and isinstance(value, dict):
        return _small_rope(value, config)
    if isinstance(default, (list, tuple)) and is_decoder:
        depth = next((vars(config)[name] for name in _DEPTHS if isinstance(vars(config).get(name), int)), 0)
        return list(value)[:N_LAYERS] if depth and len(value) == depth else None
    return None


def _small_rope(rope: dict[str, Any], config: PreTrainedConfig) -> dict[str, Any]:
    """Return the parameters of rotary embeddings for narrower heads."""
    small = {key: _small_rope(value, config) if isinstance(value, dict) else value for key, value in rope.items()}
    if sections := rope.get("mrope_section"):
        head_width = vars(config).get("head_dim") or config.hidden_size // config.num_attention_heads
        n_pairs = sum(sections) * HEAD_WIDTH // head_width
        small["mrope_section"] = [n_pairs // 3 + (place < n_pairs % 3) for place in range(3)]
    return small
