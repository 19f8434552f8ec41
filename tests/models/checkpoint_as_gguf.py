"""Writes tiny checkpoints as GGUF files, like llama.cpp's converter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

Writes = Callable[[gguf.GGUFWriter], Any]

#: The attributes of configs that hold the epsilon of norms.
_EPSILONS = ("rms_norm_eps", "norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon")
_WITH_KEY_LENGTH = ("llama", "qwen3", "qwen3moe", "gemma2", "gemma3", "qwen35", "qwen35moe", "minimax-m2")
#: The architectures whose checkpoints store norms minus one.
_NORMS_LESS_ONE = ("gemma2", "gemma3", "nemotron", "qwen35", "qwen35moe")


def write_as_gguf(
    folder: Path,
    architecture: str,
    metadata: Writes = lambda _: None,
    factors: Mapping[str, np.ndarray[Any, Any]] | None = None,
) -> Path:
    """Write a checkpoint as a GGUF file next to its folder, and return the file.

    Args:
        folder: The checkpoint.
        architecture: The name of the architecture in llama.cpp.
        metadata: Writes the metadata besides the sizes.
        factors: Additional tensors, which are no parameters of the model, by name.
    """
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    file = folder.with_suffix(".gguf")
    writer = gguf.GGUFWriter(file, architecture)
    _write_sizes(writer, model.config, architecture)
    _write_tokenizer(writer, model.config.vocab_size)
    metadata(writer)
    (kind,) = [kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture]
    names = gguf.get_tensor_name_map(kind, model.config.num_hidden_layers)
    for parameter, tensor in model.state_dict().items():
        if parameter == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        values = tensor.float()
        if parameter.endswith(".mlp.experts.gate_up_proj"):
            layer = parameter.split(".")[2]
            gate, up = values.chunk(2, dim=1)
            writer.add_tensor(f"blk.{layer}.ffn_gate_exps.weight", gate.numpy().copy())
            writer.add_tensor(f"blk.{layer}.ffn_up_exps.weight", up.numpy().copy())
            continue
        converted = parameter.replace(".dt_bias", ".dt_proj.bias").replace("correction_bias", "correction.bias")
        converted = converted.removeprefix("transformer.") if architecture == "bloom" else converted
        name = names.get_name(converted, try_suffixes=(".weight", ".bias"))
        assert name is not None, parameter
        name += ".weight" if name.endswith("_exps") else ""
        writer.add_tensor(name, _as_llama_cpp_has_it(values, parameter, architecture, model.config).numpy().copy())
    for name, divisors in (factors or {}).items():
        writer.add_tensor(name, divisors.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _write_sizes(writer: gguf.GGUFWriter, config: Any, architecture: str) -> None:
    n_heads = getattr(config, "num_attention_heads", 0)
    head = getattr(config, "head_dim", None) or config.hidden_size // max(n_heads, 1)
    inner_names = {"falcon": "ffn_hidden_size", "gpt2": "n_inner", "bloom": "n_inner"}
    inner = getattr(config, inner_names.get(architecture, "intermediate_size"), None) or 4 * config.hidden_size
    rope = getattr(config, "rope_parameters", None) or {}
    full_rope = rope.get("full_attention", rope)
    epsilon = next(getattr(config, name) for name in _EPSILONS if hasattr(config, name))
    is_rms = any(hasattr(config, name) for name in ("rms_norm_eps", "norm_eps")) and architecture != "nemotron"
    writer.add_context_length(getattr(config, "max_position_embeddings", 512))
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_vocab_size(config.vocab_size)
    writer.add_feed_forward_length(inner)
    (writer.add_layer_norm_rms_eps if is_rms or architecture == "mamba" else writer.add_layer_norm_eps)(epsilon)
    if architecture == "mamba":
        writer.add_ssm_conv_kernel(config.conv_kernel)
        writer.add_ssm_state_size(config.state_size)
        writer.add_ssm_inner_size(config.intermediate_size)
        writer.add_ssm_time_step_rank(int(config.time_step_rank))
        return
    writer.add_head_count(n_heads)
    if architecture == "lfm2":
        writer.add_head_count_kv([0 if kind == "conv" else config.num_key_value_heads for kind in config.layer_types])
        writer.add_shortconv_l_cache(config.conv_L_cache)
    else:
        writer.add_head_count_kv(1 if architecture == "falcon" else getattr(config, "num_key_value_heads", n_heads))
    if rope:
        writer.add_rope_freq_base(full_rope["rope_theta"])
        writer.add_rope_dimension_count(int(head * full_rope.get("partial_rotary_factor", 1)))
    if architecture in _WITH_KEY_LENGTH:
        writer.add_key_length(head)
        writer.add_value_length(head)
    if architecture in ("gemma2", "gemma3"):
        writer.add_sliding_window(config.sliding_window)
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if architecture.endswith("moe") or architecture == "minimax-m2":
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        width = getattr(config, "moe_intermediate_size", None) or config.intermediate_size
        writer.add_expert_feed_forward_length(width)
    if architecture in ("qwen2moe", "qwen35moe"):
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)


def _write_tokenizer(writer: gguf.GGUFWriter, n_tokens: int) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*(chr(code) if code > 32 else f"<{code}>" for code in range(n_tokens - 1)), "ab"])
    writer.add_token_types([1] * n_tokens)
    writer.add_token_merges(["a b"])


def _as_llama_cpp_has_it(values: torch.Tensor, parameter: str, architecture: str, config: Any) -> torch.Tensor:
    if architecture == "llama" and (".q_proj." in parameter or ".k_proj." in parameter):
        n_heads = config.num_attention_heads if "q_proj" in parameter else config.num_key_value_heads
        halves = values.reshape(n_heads, 2, values.shape[0] // n_heads // 2, *values.shape[1:])
        return halves.swapaxes(1, 2).reshape(values.shape)
    if architecture == "bloom" and ".query_key_value." in parameter:
        return values.reshape(config.n_head, 3, -1, *values.shape[1:]).swapaxes(0, 1).reshape(values.shape)
    is_norm = "norm" in parameter and parameter.endswith("weight") and ".linear_attn." not in parameter
    if architecture in _NORMS_LESS_ONE and is_norm:
        return values + 1
    if architecture == "gpt2" and parameter.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
        return values.T
    if parameter.endswith("A_log"):
        return -values.exp()
    if parameter.endswith("conv1d.weight"):
        return values.squeeze(1)
    if parameter.endswith("conv.conv.weight"):
        return values.squeeze(1)
    return values.squeeze(0) if parameter.endswith("shared_expert_gate.weight") else values
