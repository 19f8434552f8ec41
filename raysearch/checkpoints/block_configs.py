"""Checkpoints with layers that lack their attention or their MLP: the form of Nemotron-NAS, also called DeciLM.

The config has an entry for each layer in the list ``block_configs``, which says of the attention and of the MLP whether
it is there (``no_op``). vLLM and SGLang (``DeciLMForCausalLM``) and mlx-lm (``nemotron-nas``) read it. It describes
layers as those of Llama and of Qwen 2 only.

Source: vLLM 0.32.0, `vllm/model_executor/models/nemotron_nas.py`; mlx-lm 0.32.2, `mlx_lm/models/nemotron-nas.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: The model types whose layers the form describes.
FAMILIES = ("llama", "mistral", "qwen2")


def why_not(config: Mapping[str, Any]) -> str | None:
    """Return why layers without one of their halves cannot be described for a model.

    Args:
        config: The content of ``config.json``, or the values of a config in memory.

    Returns:
        The reason, as a clause; None if they can.
    """
    family = config.get("model_type")
    if family not in FAMILIES:
        return f"block_configs describes the layers of {', '.join(FAMILIES)} only, and this model is a {family}"
    if config.get("hidden_act", "silu") != "silu":
        return f"block_configs describes MLPs with hidden_act=silu only, and this model has {config['hidden_act']}"
    if _has_windows(config):
        return "block_configs describes no attention with a window, and this model has such layers"
    head_dim = config.get("head_dim")
    n_heads = config["num_attention_heads"]
    if head_dim is not None and head_dim * n_heads != config["hidden_size"]:
        return (
            f"block_configs needs heads that together are as wide as the hidden state, and this model has {n_heads} "
            f"heads of {head_dim} for {config['hidden_size']}"
        )
    return None


def _has_windows(config: Mapping[str, Any]) -> bool:
    """Return whether some layers attend to a window only."""
    if config.get("use_sliding_window", config["model_type"] != "qwen2") is False:  # Qwen 2 has a width without windows
        return False
    kinds = config.get("layer_types")
    if kinds:
        return "sliding_attention" in kinds
    return bool(config.get("sliding_window"))
