"""Tiny random models of many decoder families, which must run layer by layer without a table of architectures.

Every builder returns the same weights at every call (the seed is fixed), float32, in eval mode, on the CPU.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

N_LAYERS = 4
VOCABULARY = 128

_WIDTHS = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": N_LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_HEAD = {"head_dim": 8}
_EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_SLIDING = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"] * (N_LAYERS // 2)}
_GPT = {
    "vocab_size": VOCABULARY,
    "n_embd": 32,
    "n_layer": N_LAYERS,
    "n_head": 4,
    "n_positions": 64,
    "n_ctx": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_MLA = {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
_VISION = {  # it has as many blocks as the text stack, and must not be taken for it
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": N_LAYERS,
    "num_attention_heads": 4,
    "image_size": 28,
    "patch_size": 14,
}
_MAMBA = {"mamba_d_state": 4, "mamba_dt_rank": 4, "mamba_n_groups": 1}
_DELTA = {f"linear_{name}": 8 for name in ("key_head_dim", "value_head_dim")} | {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
_PER_LAYER = {
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size_per_layer_input": 8,
    "layer_types": _SLIDING["layer_types"],
}
_ROUTED = {**_EXPERTS, "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "n_shared_experts": 1}


def tiny(model_type: str, **settings: Any) -> PreTrainedModel:
    """Return a random causal LM of a model type, with these config settings."""
    config = AutoConfig.for_model(model_type, **settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        # Wider than the usual initialisation, so that every layer matters to the logits.
        for parameter in model.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.15)
        for name, experts_of_token in model.named_buffers():
            if name.endswith("tid2eid"):  # a table in the checkpoint of DeepSeek-V4
                experts_of_token.random_(model.config.n_routed_experts)
    return model.eval().requires_grad_(False)


def _builders(families: dict[str, dict[str, Any]]) -> dict[str, Callable[[], PreTrainedModel]]:
    """Return a builder for each name, which is the model type if the settings have no `model_type`."""
    return {name: partial(tiny, **{"model_type": name, **settings}) for name, settings in families.items()}


FAMILIES = _builders(
    {
        **dict.fromkeys(["llama", "qwen2", "phi", "phi3", "olmo", "olmo2", "gpt_neox"], _WIDTHS),
        **dict.fromkeys(["cohere", "stablelm", "starcoder2"], _WIDTHS),
        **dict.fromkeys(["qwen3", "gemma", "glm4", "nemotron", "helium"], _WIDTHS | _HEAD),
        **dict.fromkeys(["ernie4_5", "hunyuan_v1_dense", "seed_oss"], _WIDTHS | _HEAD),
        **dict.fromkeys(["gemma2", "gemma3_text", "cohere2", "exaone4"], _WIDTHS | _HEAD | _SLIDING),
        "llama_tied": {**_WIDTHS, "model_type": "llama", "tie_word_embeddings": True},
        "qwen3_moe": {**_WIDTHS, **_HEAD, **_EXPERTS, "mlp_only_layers": [0, 2]},
        "mistral": {**_WIDTHS, **_HEAD, "sliding_window": 4},
        "mixtral": {**_WIDTHS, **_HEAD, **_EXPERTS},
        "olmoe": {**_WIDTHS, **_EXPERTS},
        "gpt2": {**_GPT},
        "gptj": {**_GPT, "rotary_dim": 4},
        "codegen": {**_GPT, "rotary_dim": 4},
        "gpt_bigcode": {**_GPT},
        "opt": {**_WIDTHS, "ffn_dim": 48, "word_embed_proj_dim": 32},
        "falcon": {**_WIDTHS, "new_decoder_architecture": False},
        "bloom": {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": N_LAYERS, "n_head": 4},
        "mpt": {"vocab_size": VOCABULARY, "d_model": 32, "n_layers": N_LAYERS, "n_heads": 4, "max_seq_len": 64},
        "granite": {**_WIDTHS, "logits_scaling": 4.0, "residual_multiplier": 0.5, "embedding_multiplier": 2.0},
        "granitemoe": {**_WIDTHS, **_EXPERTS},
        "smollm3": {**_WIDTHS, "no_rope_layers": [1, 1, 1, 0]},
        "deepseek_v3": {**_WIDTHS, "num_key_value_heads": 4, **_ROUTED, **_MLA, "first_k_dense_replace": 2},
        "glm4_moe": {**_WIDTHS, **_HEAD, **_ROUTED, "first_k_dense_replace": 2},
        "ernie4_5_moe": {**_WIDTHS, **_EXPERTS, "moe_k": 2, "moe_layer_start_index": 1, "moe_layer_end_index": 2},
        "minicpm3": {**_WIDTHS, "num_key_value_heads": 4, **_MLA, "scale_depth": 2.0, "dim_model_base": 32},
        "gpt_oss": {**_WIDTHS, **_HEAD, **_EXPERTS, **_SLIDING},
        "gemma3": {"text_config": {**_WIDTHS, **_HEAD, **_SLIDING}, "vision_config": _VISION, "mm_tokens_per_image": 4},
        "gemma4_text": {
            **_WIDTHS,
            **_HEAD,
            **_SLIDING,
            "num_kv_shared_layers": 0,
            "hidden_size_per_layer_input": 0,
            "global_head_dim": 16,
        },
    }
)

#: Models with state-space or other recurrent layers in addition to attention.
HYBRIDS = _builders(
    {
        "mamba": {**_WIDTHS, "state_size": 4},
        "falcon_h1": {**_WIDTHS, **_MAMBA, "mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8},
        "qwen3_next": {**_WIDTHS, **_HEAD, **_EXPERTS, **_DELTA, "shared_expert_intermediate_size": 16},
        "lfm2": {**_WIDTHS, "layer_types": ["conv", "full_attention"] * (N_LAYERS // 2)},
        "recurrent_gemma": {**_WIDTHS, **_HEAD, "lru_width": 32, "block_types": ["recurrent", "attention"]},
        "kimi_linear": {
            **_WIDTHS,
            **_ROUTED,
            **{key: value for key, value in _MLA.items() if key != "q_lora_rank"},
            "num_key_value_heads": 4,
            "linear_attn_config": {
                "full_attn_layers": [2, 4],
                "kda_layers": [1, 3],
                "head_dim": 8,
                "num_heads": 4,
                "short_conv_kernel_size": 4,
            },
        },
    }
)

#: Models that must run layer by layer although no config can describe deleted layers: the kinds of layers follow from a
#: period and an offset, or all layers share one table of embeddings by layer.
UNEXPORTABLE = _builders(
    {
        "jamba": {**_WIDTHS, **_EXPERTS, **_MAMBA, "attn_layer_period": 2, "attn_layer_offset": 1},
    }
)

_SEQ2SEQ = {
    **{key: value for key, value in _WIDTHS.items() if key != "num_hidden_layers"},
    "d_model": 32,
    "decoder_layers": N_LAYERS,
    **{
        f"{part}_{name}": value
        for part in ("encoder", "decoder")
        for name, value in (("attention_heads", 4), ("ffn_dim", 48))
    },
    "is_decoder": True,
    "is_encoder_decoder": False,
}

#: Decoders whose configs count, name or embed layers differently from all others. Some of their layers can be removed.
OWN_WAYS = _builders(
    {
        "bart": {**_SEQ2SEQ, "encoder_layers": N_LAYERS},
        "blenderbot": {**_SEQ2SEQ, "encoder_layers": 2},
        "longcat_flash": {
            **{key: value for key, value in _WIDTHS.items() if key not in ("num_hidden_layers", "intermediate_size")},
            **_MLA,
            "num_layers": N_LAYERS,
            "num_key_value_heads": 4,
            "head_dim": 8,
            "ffn_hidden_size": 48,
            "expert_ffn_hidden_size": 16,
            "n_routed_experts": 4,
            "zero_expert_num": 2,
            "moe_topk": 2,
        },
        "zamba2": {
            **_WIDTHS,
            "num_key_value_heads": 4,
            "mamba_d_state": 8,
            "mamba_ngroups": 1,
            "n_mamba_heads": 4,
            "mamba_headdim": 16,
            "num_mem_blocks": 1,
            "adapter_rank": 4,
            "layers_block_type": ["mamba", "mamba", "hybrid", "hybrid"],
        },
        "qwen4_exp_text": {
            **_WIDTHS,
            **_HEAD,
            **_EXPERTS,
            **_DELTA,
            "shared_expert_intermediate_size": 16,
            "hc_count": 2,
            "hc_lowrank": 8,
            "ple_layer_ids": [1, 4],
            "ngram_size": 2,
            "heads_per_ngram": 2,
            "ngram_vocab_size_base": 100,
            "make_ngram_vocab_size_divisible_by": 8,
            "split_ngram_parts": 2,
            "layer_types": ["linear_attention"] * N_LAYERS,
        },
        "gemma4_per_layer": {
            "model_type": "gemma4_text",
            **_WIDTHS,
            **_HEAD,
            **_PER_LAYER,
            "num_kv_shared_layers": 0,
            "global_head_dim": 8,
        },
    }
)

#: Models whose states of a row depend on a longer row in the batch: by frequencies beyond a length, or selected tokens.
BY_LENGTH = _builders(
    {
        "phi3_longrope": {
            "model_type": "phi3",
            **_WIDTHS,
            "original_max_position_embeddings": 16,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "short_factor": [1.0] * 4,
                "long_factor": [4.0, 5.0, 6.0, 7.0],
                "original_max_position_embeddings": 16,
            },
        },
        "deepseek_v32": {
            **_WIDTHS,
            "num_key_value_heads": 4,
            **_ROUTED,
            **_MLA,
            "first_k_dense_replace": 1,
            "index_n_heads": 2,
            "index_head_dim": 16,
            "index_topk": 8,
        },
    }
)

_GEMMA3N = {
    **_WIDTHS,
    **_HEAD,
    **_PER_LAYER,
    "num_kv_shared_layers": 0,
    "laurel_rank": 4,
    "intermediate_size": [48] * N_LAYERS,
    "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0],
}
_SELECTING = {"index_n_heads": 2, "index_head_dim": 16, "index_topk": 8}

#: Decoders whose layers pass on several hidden states for each token: in the last axes but one, or in the first axis.
STREAMS = _builders(
    {
        "deepseek_v4": {
            **{key: value for key, value in _WIDTHS.items() if key not in ("num_key_value_heads", "intermediate_size")},
            **_HEAD,
            **_SELECTING,
            "moe_intermediate_size": 16,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "q_lora_rank": 8,
            "o_groups": 2,
            "o_lora_rank": 8,
            "partial_rotary_factor": 0.5,
            "sliding_window": 4,
            "compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 4},
            "layer_types": [
                "sliding_attention",
                "compressed_sparse_attention",
                "heavily_compressed_attention",
                "compressed_sparse_attention",
            ],
            "mlp_layer_types": ["hash_moe", "moe", "hash_moe", "moe"],
        },
        "gemma3n_text": _GEMMA3N,
    }
)

#: Decoders whose layers pass on what layers before them have computed, besides the hidden state: the tokens that a
#: sparse attention has chosen, or the state of a router.
PASSING = _builders(
    {
        "hy_v4": {
            **_WIDTHS,
            **_ROUTED,
            **_MLA,
            **_SELECTING,
            "n_group": 1,
            "num_key_value_heads": 4,
            "indexer_types": ["full", "full", "full", "shared"],
        },
        "glm_moe_dsa": {
            **_WIDTHS,
            **_ROUTED,
            **_MLA,
            **_SELECTING,
            "num_key_value_heads": 4,
            "first_k_dense_replace": 1,
            "indexer_types": ["full", "full", "full", "shared"],
        },
        "zaya": {**_WIDTHS, **_HEAD, **_EXPERTS, "num_experts_per_tok": 1, "router_hidden_size": 16},
    }
)

#: Decoders whose later layers read keys and values of earlier ones, which no state has.
REFUSED = _builders(
    {
        "gemma3n_shared": {"model_type": "gemma3n_text", **_GEMMA3N, "num_kv_shared_layers": 2},
        "gemma4_text": {**_WIDTHS, **_HEAD, **_PER_LAYER, "num_kv_shared_layers": 2, "global_head_dim": 8},
    }
)


_CODE = """
from transformers import LlamaConfig, LlamaForCausalLM

class OwnConfig(LlamaConfig):
    model_type = "own"

class Own(LlamaForCausalLM):
    config_class = OwnConfig
"""


def give_own_code(folder: Path) -> None:
    """Add code of its own classes to a Llama checkpoint."""
    (folder / "code.py").write_text(_CODE)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "code.OwnConfig", "AutoModelForCausalLM": "code.Own"}}
    (folder / "config.json").write_text(json.dumps(config))


_OWN_DECODER = """
import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

class DecoderConfig(PreTrainedConfig):
    model_type = "own_decoder"
    def __init__(self, vocab_size=64, width=16, DEPTH=4, **others):
        self.vocab_size, self.width, self.DEPTH = vocab_size, width, DEPTH
        super().__init__(**others)

class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = torch.nn.Linear(width, width)
    def forward(self, hidden):
        seen = torch.arange(1, hidden.shape[1] + 1, device=hidden.device)[:, None]
        return hidden + torch.tanh(self.linear(hidden.cumsum(1) / seen))

class Decoder(PreTrainedModel):
    config_class = DecoderConfig
    def __init__(self, config):
        super().__init__(config)
        self.embedding = torch.nn.Embedding(config.vocab_size, config.width)
        self.blocks = torch.nn.ModuleList(Block(config.width) for _ in range(config.DEPTH))
        self.head = torch.nn.Linear(config.width, config.vocab_size)
        self.post_init()
    def get_input_embeddings(self):
        return self.embedding
    def get_output_embeddings(self):
        return self.head
    def forward(self, input_ids, attention_mask=None, position_ids=None, use_cache=None, **others):
        hidden = self.embedding(input_ids)
        for block in self.blocks:
            hidden = block(hidden)
        return CausalLMOutput(logits=self.head(hidden))
"""


def write_own_decoder(folder: Path, depth: str) -> None:
    """Write a decoder of four layers with its code. Its config has the number of layers under the name `depth`."""
    folder.mkdir()
    (folder / "code.py").write_text(_OWN_DECODER.replace("DEPTH", depth))
    auto_map = {"AutoConfig": "code.DecoderConfig", "AutoModelForCausalLM": "code.Decoder"}
    config = {"model_type": "own_decoder", "architectures": ["DecoderForCausalLM"], "auto_map": auto_map}
    (folder / "config.json").write_text(json.dumps(config))
    loaded_config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        weights = AutoModelForCausalLM.from_config(loaded_config, trust_remote_code=True).state_dict()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
