"""The config of a Llama, a Mistral or a Qwen 2 some of whose layers have no attention or no MLP.

raysearch has written this file into the checkpoint. vLLM reads the config by this class, too.
"""

from typing import Any

from transformers import LlamaConfig


class Values(dict[str, Any]):
    """A part of a config whose values are attributes, too, as vLLM needs."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class DeciLMConfig(LlamaConfig):
    """The config of a Llama with a list of what each layer has.

    Args:
        block_configs: For each layer a dict with ``attention`` and ``ffn``; each has ``no_op``, which is true if the
            layer lacks it.
        qkv_bias: Whether the queries, keys and values have a bias, though the attention's output has none.
        settings: The settings of a Llama.
    """

    model_type = "nemotron-nas"  # by this name, vLLM and mlx-lm find their code

    def __init__(
        self, block_configs: list[dict[str, Any]] | None = None, qkv_bias: bool = False, **settings: Any
    ) -> None:
        super().__init__(**settings)
        blocks = block_configs or []
        self.block_configs = [Values({part: Values(values) for part, values in block.items()}) for block in blocks]
        self.qkv_bias = qkv_bias
