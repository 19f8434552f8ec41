"""Completes the config that transformers reads from a GGUF file by all else that the file says of its model.

transformers 5.23 reads the sizes, and leaves out what changes a number as well: scaled and partial rotary embeddings,
soft caps, windows, scales. What a key means is taken from llama.cpp, which the file was made for (``load_hparams`` and
``llm_arch`` of its release b11549). A key or a tensor that changes a number and is not used here is refused, so that no
file is searched as another model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from raysearch.errors import UnsupportedModelError, UserError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

#: The architectures that are read, each held to its checkpoint by a test.
ARCHITECTURES = (
    *("llama", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "gemma2", "gemma3", "phi3", "falcon", "gpt2", "starcoder2"),
    *("stablelm", "nemotron", "lfm2", "mamba", "bloom", "qwen35", "qwen35moe", "minimax-m2"),
)
#: Keys that change no number, or that transformers reads: sizes, which its weights must fit.
_READ = {
    *("block_count", "embedding_length", "vocab_size", "attention.head_count", "attention.head_count_kv"),
    *("tensor_data_layout", "rope.scaling.finetuned"),
    *("ssm.conv_kernel", "ssm.state_size", "ssm.time_step_rank", "ssm.inner_size", "ssm.group_count"),
    *("use_parallel_residual", "full_attention_interval"),
}
#: Keys that transformers reads of the models whose config has none of their attributes below, or that need no value.
_OFTEN_READ = {"context_length", "feed_forward_length"}
#: The attributes of configs that hold a key's value, of which a config has one at most.
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
#: Values with which a key changes nothing.
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
#: How many layers the models have whose attention llama.cpp scales by the width of a head's part of the hidden state.
_SCALED_BY_WIDTH = {"gemma2": 46, "gemma3": 62}
#: The shares of a Llama 3's context before scaling, a power of 2, beyond which wavelengths are divided or stay.
_LOW, _HIGH, _CONTEXTS = 1.0, 4.0, [2**power for power in range(4, 21)]
#: llama.cpp's number of the function that turns a router's scores into weights: softmax, but for these.
_SOFTMAX, _GATES = 1, {"minimax-m2": 2}
#: Those whose class in transformers rotates a part of a head, though the config that is read has no such part.
_PARTLY_ROTATED = ("phi3", "minimax-m2")
_FREQUENCIES, _LONG, _SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"


@dataclass(frozen=True)
class GGUFContent:
    """What a GGUF file says of its model.

    Args:
        name: The model's name, for messages.
        file: The file's name.
        architecture: As llama.cpp calls it: ``llama``.
        values: The values under the architecture's prefix, by key without it.
        tensors: The names of all tensors.
        factors: The divisors of rotary frequencies, by the tensor's name.
    """

    name: str
    file: str
    architecture: str
    values: Mapping[str, Any]
    tensors: frozenset[str]
    factors: Mapping[str, NDArray[np.float32]]

    def refused(self, reason: str) -> UnsupportedModelError:
        """Return the refusal to search the file, with what can be searched in its place."""
        return UnsupportedModelError(
            f"model={self.name} ({self.file}) cannot be searched: {reason}; search the model's folder or hub id, and "
            f"prune this file by: raysearch export SEARCH --gguf pruned.gguf --from {self.file}"
        )


def read_content(file: Path, name: str) -> GGUFContent:
    """Read the metadata of a GGUF file.

    Args:
        file: The file.
        name: The model's name, for messages.

    Raises:
        UserError: It is one part of several.
        UnsupportedModelError: Files of its architecture are not read.
    """
    import gguf

    reader = gguf.GGUFReader(file)
    fields = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("tokenizer.")}
    n_parts = int(fields.get("split.count", 1))
    if n_parts > 1:
        part = int(fields.get("split.no", 0)) + 1
        raise UserError(
            f"model={name} ({file.name}) is part {part} of {n_parts} of a GGUF file; join them with "
            "llama-gguf-split --merge FIRST_PART WHOLE.gguf, and name the whole file"
        )
    architecture = str(fields["general.architecture"])
    prefix = f"{architecture}."
    factors = {
        tensor.name: np.asarray(tensor.data, np.float32).ravel()
        for tensor in reader.tensors
        if tensor.name in (_FREQUENCIES, _LONG, _SHORT)
    }
    content = GGUFContent(
        name=name,
        file=file.name,
        architecture=architecture,
        values={key.removeprefix(prefix): value for key, value in fields.items() if key.startswith(prefix)},
        tensors=frozenset(tensor.name for tensor in reader.tensors),
        factors=factors,
    )
    if architecture not in ARCHITECTURES:
        raise content.refused(f"raysearch reads no GGUF file of the architecture {architecture}")
    return content


def complete(config: PreTrainedConfig, content: GGUFContent) -> None:
    """Set in a config all that its GGUF file says of it.

    Args:
        config: As transformers has read it from the file; it is changed.
        content: What the file says.

    Raises:
        UnsupportedModelError: The file says something that the model's class in transformers does not have.
    """
    for key, value in content.values.items():
        if key not in _READ and not key.startswith("rope.") and key not in _BY_RULE:
            _set(config, content, key, value)
    for key, rule in _BY_RULE.items():
        if key in content.values or key == "attention.scale":
            rule(config, content)
    _set_rope(config, content)


def check_tensors(content: GGUFContent, skeleton: PreTrainedModel) -> None:
    """Refuse a file with tensors that its model in transformers has no parameters for: it would be another model."""
    import gguf

    (kind,) = [kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == content.architecture]
    n_layers = skeleton.config.num_hidden_layers
    names = gguf.get_tensor_name_map(kind, n_layers)
    used = {*content.factors}
    for parameter in map(_as_converters_name_it, skeleton.state_dict()):
        base, _, suffix = parameter.rpartition(".")
        inner = base.removeprefix(f"{skeleton.base_model_prefix}.")
        for name, end in ((base, f".{suffix}"), (inner, f".{suffix}"), (parameter, "")):
            if (tensor := names.get_name(name)) is not None:
                used.add(f"{tensor}{end}")
        if parameter.endswith((".mlp.experts.gate_up_proj", ".mlp.experts.down_proj")):
            layer = parameter.split(".layers.")[1].split(".")[0]
            used |= {f"blk.{layer}.ffn_{part}_exps.weight" for part in ("gate", "up", "down")}
    further = tuple(f"blk.{layer}." for layer in range(n_layers, content.values["block_count"]))
    unused = sorted(tensor for tensor in content.tensors - used if not tensor.startswith(further))
    if unused:
        raise content.refused(
            f"its tensor {unused[0]} has no place in {type(skeleton).__name__} of transformers (of {len(unused)} such)"
        )


def _as_converters_name_it(parameter: str) -> str:
    """Return the name of a parameter that llama.cpp's converter looks for, where it is not transformers' own."""
    return parameter.replace(".dt_bias", ".dt_proj.bias").replace("e_score_correction_bias", "e_score_correction.bias")


def _set(config: PreTrainedConfig, content: GGUFContent, key: str, value: Any) -> None:
    """Set the attribute that holds a key's value; refuse a value that changes a number and has no attribute."""
    if isinstance(value, list):
        raise content.refused(f"{content.architecture}.{key} has a value for each layer")
    for attribute in _ATTRIBUTES.get(key, ()):
        if hasattr(config, attribute):
            setattr(config, attribute, None if value in _NEUTRAL.get(key, ()) and key.endswith("capping") else value)
            return
    if value not in _NEUTRAL.get(key, ()) and key not in _OFTEN_READ:
        raise content.refused(f"{content.architecture}.{key}={value} is not read from GGUF files")


def _set_value_length(config: PreTrainedConfig, content: GGUFContent) -> None:
    """Refuse heads whose values are not as wide as their keys."""
    width = content.values["attention.value_length"]
    if width != content.values.get("attention.key_length", width) or width != _head_width(config):
        raise content.refused(f"{content.architecture}.attention.value_length={width} is not the width of a key")


def _set_windows(config: PreTrainedConfig, content: GGUFContent) -> None:
    """Set which layers attend to a window: a flag for each layer, or a period whose last layer attends to all."""
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


def _check_further_layers(config: PreTrainedConfig, content: GGUFContent) -> None:
    """Refuse layers that predict further tokens where transformers takes them for layers of the model."""
    n_layers = content.values["block_count"] - content.values["nextn_predict_layers"]
    if config.num_hidden_layers != n_layers:
        raise content.refused(f"its last {content.values['nextn_predict_layers']} layers predict further tokens")


def _check_gate(config: PreTrainedConfig, content: GGUFContent) -> None:
    """Refuse another function of a router's scores than the model's class has."""
    gate = content.values["expert_gating_func"]
    if gate != _GATES.get(content.architecture, _SOFTMAX):
        raise content.refused(f"{content.architecture}.expert_gating_func={gate} is not read from GGUF files")


def _set_attention_scale(config: PreTrainedConfig, content: GGUFContent) -> None:
    """Set what Gemma divides its scores by, before the root: as the file says, or as llama.cpp derives it."""
    scale = content.values.get("attention.scale", 0.0)
    if not hasattr(config, "query_pre_attn_scalar"):
        if scale:
            raise content.refused(f"{content.architecture}.attention.scale={scale} is not read from GGUF files")
    elif scale:
        config.query_pre_attn_scalar = scale**-2
    elif config.num_hidden_layers == _SCALED_BY_WIDTH.get(content.architecture):
        config.query_pre_attn_scalar = config.hidden_size // config.num_attention_heads
    else:
        config.query_pre_attn_scalar = _head_width(config)


_BY_RULE = {
    "attention.value_length": _set_value_length,
    "attention.sliding_window_pattern": _set_windows,
    "attention.recurrent_layers": _set_recurrent_layers,
    "attention.scale": _set_attention_scale,
    "expert_gating_func": _check_gate,
    "nextn_predict_layers": _check_further_layers,
}


def _head_width(config: PreTrainedConfig) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _set_rope(config: PreTrainedConfig, content: GGUFContent) -> None:
    """Set the rotary embeddings: base, share of a head's width, and scaling.

    Windows have a base of their own, and are not scaled.
    """
    values = {key.removeprefix("rope."): value for key, value in content.values.items() if key.startswith("rope.")}
    parameters = getattr(config, "rope_parameters", None)
    if parameters is None:
        if content.factors or _scaling(config, content, values) != {"rope_type": "default"}:
            raise content.refused("its rotary embeddings have no place in its class in transformers")
        return
    of_windows = parameters.get("sliding_attention")
    of_all = parameters.get("full_attention") or parameters
    if of_windows is not None:
        of_windows["rope_theta"] = values.pop("freq_base_swa", 10_000.0)
    of_all["rope_theta"] = values.pop("freq_base", 10_000.0)
    width = _head_width(config)
    n_rotated = values.pop("dimension_count", width)
    if n_rotated != int(width * of_all.get("partial_rotary_factor", 1.0)):
        if "partial_rotary_factor" not in of_all and content.architecture not in _PARTLY_ROTATED:
            raise content.refused(f"{content.architecture}.rope.dimension_count={n_rotated} is not a head's {width}")
        of_all["partial_rotary_factor"] = _share(n_rotated, width)
    if "mrope_section" in of_all:
        values.pop("dimension_sections", None)  # which transformers reads
    of_all.update(_scaling(config, content, values))
    if values:
        raise content.refused(f"{content.architecture}.rope.{next(iter(values))} is not read from GGUF files")


def _share(n_rotated: int, width: int) -> float:
    """Return the share of a head's width that is rotated, of which transformers takes the integer part times width."""
    share = n_rotated / width
    return share if int(width * share) == n_rotated else math.nextafter(share, 1)


def _scaling(config: PreTrainedConfig, content: GGUFContent, values: dict[str, Any]) -> dict[str, Any]:
    """Return the scaling of rotary embeddings as transformers has it, and take its keys out of the values."""
    factor = values.pop("scaling.factor", 0.0) or values.pop("scale_linear", 0.0)
    kind = values.pop("scaling.type", "linear")  # llama.cpp takes a factor without a type for linear
    values.pop("scaling.finetuned", None)
    context = values.pop("scaling.original_context_length", getattr(config, "max_position_embeddings", None))
    attention_factor = values.pop("scaling.attn_factor", 1.0) * values.pop("scaling.yarn_attn_factor", 1.0)
    if kind == "longrope" or _LONG in content.factors:
        if hasattr(config, "original_max_position_embeddings"):
            config.original_max_position_embeddings = context
        return {
            "rope_type": "longrope",
            "original_max_position_embeddings": context,
            "long_factor": content.factors[_LONG].tolist(),
            "short_factor": content.factors[_SHORT].tolist(),
            "attention_factor": attention_factor,
        }
    is_scaled = kind != "none" and factor not in (0.0, 1.0)
    if kind == "yarn" and is_scaled:
        if values.pop("scaling.yarn_ext_factor", 1.0) not in (1.0, -1.0) or _FREQUENCIES in content.factors:
            raise content.refused("its YaRN has an extrapolation factor or divided frequencies")
        if values.pop("scaling.yarn_log_multiplier", 0.0):
            raise content.refused("its YaRN has a multiplier of logarithms")
        return {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": context,
            "beta_fast": values.pop("scaling.yarn_beta_fast", 32.0),
            "beta_slow": values.pop("scaling.yarn_beta_slow", 1.0),
            "attention_factor": attention_factor * (1 + 0.1 * math.log(factor)),
        }
    if attention_factor != 1.0 or kind not in ("none", "linear", "yarn"):
        raise content.refused(f"its rotary embeddings are scaled by {kind}, attention factor {attention_factor:g}")
    divisors = content.factors.get(_FREQUENCIES)
    if divisors is not None and not np.all(divisors == 1):
        if is_scaled:
            raise content.refused(f"it scales its rotary embeddings by {kind} and by {_FREQUENCIES}")
        return _like_llama3(config, content, divisors)
    return {"rope_type": "linear", "factor": factor} if is_scaled else {"rope_type": "default"}


def _like_llama3(config: PreTrainedConfig, content: GGUFContent, divisors: NDArray[np.float32]) -> dict[str, Any]:
    """Return the scaling of Llama 3 that has these divisors of frequencies; refuse others.

    Source: ``Llama3_1``'s scaling as transformers has it (``rope_type: llama3``): wavelengths below a fourth of the
    context before scaling stay, those above it are divided by the factor, those between are interpolated.
    """
    base = content.values.get("rope.freq_base", 10_000.0)
    wavelengths = 2 * np.pi * base ** (np.arange(len(divisors)) / len(divisors))
    factor = float(divisors.max())
    for context in _CONTEXTS:
        between = ((context / wavelengths - _LOW) / (_HIGH - _LOW)).clip(0, 1)
        expected = 1 / ((1 - between) / factor + between)
        if np.allclose(expected, divisors, rtol=1e-5, atol=0):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": _LOW,
                "high_freq_factor": _HIGH,
                "original_max_position_embeddings": context,
            }
    raise content.refused(f"{_FREQUENCIES} divides frequencies in another way than Llama 3 does")
