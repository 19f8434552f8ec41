"""A Llama, a Mistral or a Qwen 2 some of whose layers have no attention or no MLP, for transformers.

raysearch has written this file into the checkpoint.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaForCausalLM, LlamaModel

from .configuration_decilm import DeciLMConfig


class DeciLMDecoderLayer(LlamaDecoderLayer):
    """A layer of a Llama that may have no attention or no MLP.

    Args:
        config: The config.
        layer_idx: The number of the layer.
        cache_idx: The number of its attention among all attentions, which is its place in the KV cache. So the first
            place is used, by which transformers counts the tokens that the cache holds.
    """

    def __init__(self, config: DeciLMConfig, layer_idx: int, cache_idx: int) -> None:
        super().__init__(config, cache_idx)
        block = config.block_configs[layer_idx]
        self.has_attention = not block.attention.no_op
        self.has_mlp = not block.ffn.no_op
        if not self.has_attention:
            del self.self_attn, self.input_layernorm
        elif config.qkv_bias:
            for projection in (self.self_attn.q_proj, self.self_attn.k_proj, self.self_attn.v_proj):
                projection.bias = nn.Parameter(torch.zeros(projection.out_features))
        if not self.has_mlp:
            del self.mlp, self.post_attention_layernorm

    def forward(self, hidden_states: Tensor, **others: Any) -> Tensor:  # type: ignore[override]
        """Run the halves that the layer has.

        Args:
            hidden_states: The hidden states before it, [B, T, d].
            others: The arguments of the attention: mask, positions, cache.

        Returns:
            The hidden states after it, [B, T, d].
        """
        if self.has_attention:
            attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **others)
            hidden_states = hidden_states + attended
        if self.has_mlp:
            hidden_states = hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))
        return hidden_states


class DeciLMModel(LlamaModel):
    """A Llama without its output head."""

    config: DeciLMConfig

    def __init__(self, config: DeciLMConfig) -> None:
        super().__init__(config)
        self._no_split_modules = ["DeciLMDecoderLayer"]
        has_attention = [not block.attention.no_op for block in config.block_configs]
        self.layers = nn.ModuleList(
            DeciLMDecoderLayer(config, layer, sum(has_attention[:layer])) for layer in range(config.num_hidden_layers)
        )
        self.post_init()


class DeciLMForCausalLM(LlamaForCausalLM):
    """A Llama with its output head."""

    config: DeciLMConfig

    def __init__(self, config: DeciLMConfig) -> None:
        super().__init__(config)
        self._no_split_modules = ["DeciLMDecoderLayer"]
        self.model = DeciLMModel(config)
        self.post_init()
