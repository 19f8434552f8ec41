"""Completes the config that transformers reads from a GGUF file with the remaining metadata of the file.

transformers 5.23 reads the sizes, and ignores other settings that change results: scaled and partial rotary embeddings,
soft caps, windows, scales. The meaning of a key is that of llama.cpp, for which the file was made (``load_hparams`` and
``llm_arch`` of its release b11549). A file with a key or a tensor that changes results and is not used here is refused,
so that no file is searched as another model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from raysearch.models.gguf_content import GGUFContent
from raysearch.models.gguf_rope import head_width, set_rope

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

#: Keys that do not change results, and sizes that transformers reads, which the weights must fit.
_READ = {
    "block_count",
    "embedding_length",
    "vocab_size",
    "attention.head_count",
    "attention.head_count_kv",
    "tensor_data_layout",
    "rope.scaling.finetuned",
    "ssm.conv_kernel",
    "ssm.state_size",
    "ssm.time_step_rank",
    "ssm.inner_size",
    "ssm.group_count",
    "use_parallel_residual",
    "full_attention_interval",
}
#: Keys that transformers reads itself, or that are not needed, if a config has none of their attributes below.
_OFTEN_READ = {"context_length", "feed_forward_length"}
#: The attributes of configs that hold a key's value. A config has at most one of them.
_ATTRIBUTES: Mapping[str, Sequence[str]] = {
    "context_length": ["max_position_embeddings"],
    "attention.key_length": ["head_dim"],
    "attention.layer_norm_epsilon": ["layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"],
    "attention.layer_norm_rms_epsilon": ["rms_norm_eps", "norm_eps", "layer_norm_epsilon"],
    "attention.sliding_window": ["sliding_window"],
    "attn_logit_softcapping": ["attn_logit_softcapping"],
    "feed_forward_length": ["ffn_hidden_size", "n_inner"],
    "final_logit_softcapping": ["final_logit_softcapping"],
    "expert_count": ["num_experts", "num_local_experts"],
    "expert_used_count": ["num_experts_per_tok"],
    "expert_feed_forward_length": ["moe_intermediate_size", "intermediate_size"],
    "expert_shared_feed_forward_length": ["shared_expert_intermediate_size"],
    "expert_weights_norm": ["norm_topk_prob"],
    "shortconv.l_cache": ["conv_L_cache"],
}
#: Values of keys that do not change results.
_NEUTRAL: Mapping[str, Sequence[Any]] = {
    "attention.causal": [True],
    "attention.clamp_kqv": [0.0],
    "attention.scale": [0.0],
    "attn_logit_softcapping": [0.0],
    "embedding_scale": [0.0, 1.0],
    "expert_count": [0],
    "expert_used_count": [0],
    "expert_group_count": [0, 1],
    "expert_group_used_count": [0, 1],
    "expert_shared_count": [0],
    "expert_weights_norm": [True],
    "expert_weights_scale": [0.0, 1.0],
    "final_logit_softcapping": [0.0],
    "leading_dense_block_count": [0],
    "logit_scale": [0.0, 1.0],
    "residual_scale": [0.0, 1.0],
    "router_logit_softcapping": [0.0],
    "ssm.dt_b_c_rms": [False],
}
#: The number of layers by which llama.cpp recognises a model whose attention it scales by hidden size / heads.
_SCALED_BY_WIDTH = {"gemma2": 46, "gemma3": 62}
#: llama.cpp's number of the function that turns a router's scores into weights. It is softmax except for `_GATES`.
_SOFTMAX = 1
_GATES = {"minimax-m2": 2}


def complete(config: PreTrainedConfig, content: GGUFContent) -> None:
    """Set the values of a GGUF file's metadata in a config.

    Args:
        config: The config that transformers has read from the file. It is changed in place.
        content: The metadata.

    Raises:
        UnsupportedModelError: The file has a setting that the model's class in transformers does not support.
    """
    for key, value in content.values.items():
        if key not in _READ and not key.startswith("rope.") and key not in _BY_RULE:
            _set(config, content, key, value)
    for key, rule in _BY_RULE.items():
        if key in content.values or key == "attention.scale":
            rule(config, content)
    set_rope(config, content)


def check_tensors(content: GGUFContent, skeleton: PreTrainedModel) -> None:
    """Refuse a file with tensors that are no parameters of its model in transformers, which would be another model.

    Args:
        content: The metadata of the file.
        skeleton: The model in transformers, without weights.

    Raises:
        UnsupportedModelError: There is such a tensor.
    """
    import gguf

    (kind,) = [kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == content.architecture]
    n_layers = skeleton.config.num_hidden_layers
    names = gguf.get_tensor_name_map(kind, n_layers)
    used = {*content.factors}
    for parameter in map(_converters_name, skeleton.state_dict()):
        base, _, suffix = parameter.rpartition(".")
        inner = base.removeprefix(f"{skeleton.base_model_prefix}.")
        for name, end in ((base, f".{suffix}"), (inner, f".{suffix}"), (parameter, "")):
            if (tensor := names.get_name(name)) is not None:
                used.add(f"{tensor}{end}")
        if parameter.endswith((".mlp.experts.gate_up_proj", ".mlp.experts.down_proj")):
            layer = parameter.split(".layers.")[1].split(".")[0]
            used |= {f"blk.{layer}.ffn_{part}_exps.weight" for part in ("gate", "up", "down")}
    predicting = tuple(f"blk.{block}." for block in range(n_layers, content.values["block_count"]))
    unused = sorted(tensor for tensor in content.tensors - used if not tensor.startswith(predicting))
    if unused:
        raise content.refused(
            f"its tensor {unused[0]} has no place in {type(skeleton).__name__} of transformers (of {len(unused)} such)"
        )


def _converters_name(parameter: str) -> str:
    """Return the name of a parameter in llama.cpp's converter."""
    return parameter.replace(".dt_bias", ".dt_proj.bias").replace("e_score_correction_bias", "e_score_correction.bias")


def _set(config: PreTrainedConfig, content: GGUFContent, key: str, value: Any) -> None:
    """Set the attribute that holds a key's value; refuse a value that changes results and has no attribute."""
    if isinstance(value, list):
        raise content.refused(f"{content.architecture}.{key} has a value for each layer")
    is_neutral = value in _NEUTRAL.get(key, ())
    for attribute in _ATTRIBUTES.get(key, ()):
        if hasattr(config, attribute):
            setattr(config, attribute, None if is_neutral and key.endswith("capping") else value)
            return
    if not is_neutral and key not in _OFTEN_READ:
        raise content.refused(f"{content.architecture}.{key}={value} is not read from GGUF files")


def _set_value_length(config: PreTrainedConfig, content: GGUFContent) -> None:
    """Refuse heads whose values and keys have different widths."""
    width = content.values["attention.value_length"]
    if width != content.values.get("attention.key_length", width) or width != head_width(config):
        raise content.refused(f"{content.architecture}.attention.value_length={width} is not the width of a key")


def _set_windows(config: PreTrainedConfig, content: GGUFContent) -> None:
    """Set which layers attend to a window: by a flag for each layer, or by a period whose last layer does not."""
    pattern = content.values["attention.sliding_window_pattern"]
    n_layers = config.num_hidden_layers
    if not hasattr(config, "layer_types"):
        raise content.refused(f"{content.architecture}.attention.sliding_window_pattern is not read from GGUF files")
    flags = pattern if isinstance(pattern, list) else [layer % pattern < pattern - 1 for layer in range(n_layers)]
    if len(flags) != n_layers:
        raise content.refused(f"its sliding_window_pattern has {len(flags)} values for {n_layers} layers")
    config.layer_types = ["sliding_attention" if flag else "full_attention" for flag in flags]


def _set_recurrent_layers(config: PreTrainedConfig, content: GGUFContent) -> None:
    """Set which layers have linear attention, by a flag for each layer."""
    flags = content.values["attention.recurrent_layers"][: config.num_hidden_layers]
    config.layer_types = ["linear_attention" if flag else "full_attention" for flag in flags]


def _check_predicting_layers(config: PreTrainedConfig, content: GGUFContent) -> None:
    """Refuse layers that predict further tokens if transformers reads them as layers of the model."""
    n_layers = content.values["block_count"] - content.values["nextn_predict_layers"]
    if config.num_hidden_layers != n_layers:
        raise content.refused(f"its last {content.values['nextn_predict_layers']} layers predict further tokens")


def _check_gate(config: PreTrainedConfig, content: GGUFContent) -> None:
    """Refuse a function of a router's scores that the model's class does not have."""
    gate = content.values["expert_gating_func"]
    if gate != _GATES.get(content.architecture, _SOFTMAX):
        raise content.refused(f"{content.architecture}.expert_gating_func={gate} is not read from GGUF files")


def _set_attention_scale(config: PreTrainedConfig, content: GGUFContent) -> None:
    """Set Gemma's `query_pre_attn_scalar`, whose root divides the scores, as in the file or as llama.cpp derives it."""
    scale = content.values.get("attention.scale", 0.0)
    if not hasattr(config, "query_pre_attn_scalar"):
        if scale:
            raise content.refused(f"{content.architecture}.attention.scale={scale} is not read from GGUF files")
    elif scale:
        config.query_pre_attn_scalar = scale**-2
    elif config.num_hidden_layers == _SCALED_BY_WIDTH.get(content.architecture):
        config.query_pre_attn_scalar = config.hidden_size // config.num_attention_heads
    else:
        config.query_pre_attn_scalar = head_width(config)


_BY_RULE = {
    "attention.value_length": _set_value_length,
    "attention.sliding_window_pattern": _set_windows,
    "attention.recurrent_layers": _set_recurrent_layers,
    "attention.scale": _set_attention_scale,
    "expert_gating_func": _check_gate,
    "nextn_predict_layers": _check_predicting_layers,
}
