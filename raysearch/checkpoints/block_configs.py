"""Checkpoints with layers that lack their attention or their MLP: the form of Nemotron-NAS, also called DeciLM.

The config has an entry for each layer in the list ``block_configs``, which says of the attention and of the MLP whether
it is there (``no_op``). vLLM and SGLang (``DeciLMForCausalLM``) and mlx-lm (``nemotron-nas``) read it. It describes
layers as those of Llama and of Qwen 2 only. transformers has no such model, so the checkpoint contains the code.

Source: vLLM 0.32.0, `vllm/model_executor/models/nemotron_nas.py`; mlx-lm 0.32.2, `mlx_lm/models/nemotron-nas.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raysearch.checkpoints.checkpoint import read_json
from raysearch.checkpoints.kept_blocks import KeptBlocks
from raysearch.core.mask import PARTS
from raysearch.text.sentences import listed

_WIDTHS = ("hidden_size", "intermediate_size", "num_attention_heads")
#: The model types whose layers the form describes, and the keys whose values follow from nothing else in the config.
_NEEDED_KEYS = {
    "llama": _WIDTHS,
    "mistral": (*_WIDTHS, "num_key_value_heads", "sliding_window"),
    "qwen2": (*_WIDTHS, "num_key_value_heads"),
}
FAMILIES = tuple(_NEEDED_KEYS)
#: The files with the code of the config and of the model, which are copied into the checkpoint.
CODE = tuple(sorted(Path(__file__).with_name("decilm").glob("*.py")))
ARCHITECTURE = "DeciLMForCausalLM"
_CODE_KEYS = {
    "architectures": [ARCHITECTURE],
    "model_type": "nemotron-nas",
    "auto_map": {
        "AutoConfig": "configuration_decilm.DeciLMConfig",
        "AutoModelForCausalLM": f"modeling_decilm.{ARCHITECTURE}",
    },
}
#: The keys of a config about windows, which the form does not describe. The model has none.
_WINDOW_KEYS = ("layer_types", "max_window_layers", "sliding_window", "use_sliding_window")
_MULTIPLE = 256  # by `ffn_mult`, the width of an MLP is a multiple of it


def why_not(config: Mapping[str, Any]) -> str | None:
    """Return why layers without one of their halves cannot be described for a model.

    Args:
        config: The content of ``config.json``, or the values of a config in memory.

    Returns:
        The reason, as a clause; None if they can.
    """
    if "AutoModelForCausalLM" in (config.get("auto_map") or {}):
        return "block_configs describes models of transformers' own classes only, and this model has its own code"
    family = config.get("model_type")
    if family not in FAMILIES:
        return f"block_configs describes the layers of {', '.join(FAMILIES)} only, and this model is a {family}"
    missing = [key for key in _NEEDED_KEYS[family] if key not in config]
    if missing:
        return f"block_configs needs {missing[0]}, which the config does not give"
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


def own_code(folder: Path) -> str | None:
    """Return that a checkpoint has code of its own, as a clause; None if it has none.

    raysearch's code in a checkpoint needs `trust_remote_code`, with which other code in it would run, too.

    Args:
        folder: The checkpoint.
    """
    with_code = [path.name for path in folder.glob("*.py")]
    with_code += [path.name for path in folder.glob("*config.json") if "auto_map" in read_json(path)]
    if not with_code:
        return None
    return f"with the code that such a model needs, the checkpoint's own code would run ({listed(sorted(with_code))})"


def _has_windows(config: Mapping[str, Any]) -> bool:
    """Return whether some layers attend to a window only."""
    if config.get("use_sliding_window", config["model_type"] != "qwen2") is False:  # Qwen 2 has a width without windows
        return False
    kinds = config.get("layer_types")
    if kinds:
        return "sliding_attention" in kinds
    return bool(config.get("sliding_window"))


def config_with_blocks(config: Mapping[str, Any], kept: KeptBlocks) -> dict[str, Any]:
    """Return the config of a pruned model some of whose layers lack a half.

    The list ``per_layer_config`` says the same in the form that transformers intends for its own classes, which do not
    read it yet.

    Args:
        config: The content of ``config.json`` for the pruned model's number of layers.
        kept: The layers of the pruned model.

    Returns:
        The content of the new ``config.json``.
    """
    written = {key: value for key, value in config.items() if key not in _WINDOW_KEYS}
    n_heads = config["num_attention_heads"]
    attention = {"no_op": False, "n_heads_in_group": n_heads // (config.get("num_key_value_heads") or n_heads)}
    mlp = {"no_op": False, **_width(config)}
    written |= _CODE_KEYS | {"hidden_act": "silu", "qkv_bias": _has_qkv_bias(config)}
    written["block_configs"] = [
        {
            "attention": {"no_op": True} if block.attention is None else attention,
            "ffn": {"no_op": True} if block.mlp is None else mlp,
        }
        for block in kept.blocks
    ]
    written["per_layer_config"] = {
        str(number): {"skip": [part]}
        for number, block in enumerate(kept.blocks)
        for part in PARTS
        if getattr(block, part) is None
    }
    scaling = config.get("rope_scaling")
    if scaling and "type" in scaling:  # mlx-lm reads the newer name alone
        written["rope_scaling"] = {"rope_type": scaling["type"], **scaling}
    return written


def unread(config: Mapping[str, Any]) -> dict[str, str]:
    """Return what runtimes cannot run of a model in this form, by their names; empty for another form.

    A model of Nemotron-NAS itself has `block_configs`, too, but no `per_layer_config`.

    Args:
        config: The content of ``config.json``.
    """
    blocks = config.get("block_configs")
    if not blocks or "per_layer_config" not in config:
        return {}
    reasons = {"llama.cpp": "layers without one of their halves in this form; `raysearch export --gguf` writes its own"}
    if blocks[0]["attention"]["no_op"]:
        reasons["vllm"] = "a first layer without attention"
    if any(not block["ffn"]["no_op"] and "ffn_mult" not in block["ffn"] for block in blocks):
        reasons["mlx"] = f"MLPs in this form whose width is no multiple of {_MULTIPLE}"
    elif config["qkv_bias"] and not config.get("attention_bias"):
        reasons["mlx"] = "attentions in this form that have a bias, but none of their output"
    return reasons


def _has_qkv_bias(config: Mapping[str, Any]) -> bool:
    """Return whether queries, keys and values have a bias: always in Qwen 2, in Llama together with the output."""
    return config["model_type"] == "qwen2" or bool(config.get("attention_bias"))


def _width(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the width of the MLPs, as ``ffn_mult`` if it can be: mlx-lm and SGLang read nothing else."""
    width = config["intermediate_size"]
    if width % _MULTIPLE:
        return {"intermediate_size": width}
    return {"ffn_mult": 3 * width / (2 * config["hidden_size"])}
