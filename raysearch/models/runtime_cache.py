"""The KV cache of a model as other runtimes allocate it: in blocks of tokens, and in their own dtype."""

from __future__ import annotations

import math
from dataclasses import dataclass

from raysearch.core.kv_cache import KvCache
from raysearch.errors import UnsupportedModelError
from raysearch.models.kv_cache import count_kv_cache, model_for_cache
from raysearch.models.spec import ModelInfo


@dataclass(frozen=True)
class CacheLayout:
    """How a runtime allocates keys and values.

    Args:
        block_tokens: The tokens of a sequence are rounded up to a multiple of this number.
        window_tokens: A layer with a window has room for its window and so many further tokens; None if the size of its
            cache also depends on other layers.
        dtype_bytes: The bytes of a number; None for those of the model's dtype.
        source: Where this is written.
    """

    block_tokens: int
    window_tokens: int | None
    dtype_bytes: int | None
    source: str


#: The layouts by default options of the runtimes.
LAYOUTS = {
    "llama.cpp": CacheLayout(
        block_tokens=256,
        window_tokens=512,  # n_ubatch
        dtype_bytes=2,  # f16
        source="llama.cpp b11549: src/llama-context.cpp pads n_ctx / n_seq_max to 256 cells, and "
        "src/llama-kv-cache-iswa.cpp has min(n_ctx, pad(n_swa + n_ubatch, 256)) cells for windows",
    ),
    "vllm": CacheLayout(
        block_tokens=16,
        window_tokens=None,
        dtype_bytes=None,
        source="vLLM 0.32.0: v1/kv_cache_interface.py, FullAttentionSpec, and config/cache.py, DEFAULT_BLOCK_SIZE",
    ),
}


#: The default of vLLM on a CPU. Source: vLLM 0.32.0, platforms/cpu.py.
_CPU_BLOCK_TOKENS = 128


def block_tokens_in(runtime: str, device: str) -> int:
    """Return the size of a runtime's blocks on a device, by its default options.

    Args:
        runtime: ``llama.cpp`` or ``vllm``.
        device: The device, such as ``cpu`` or ``cuda:0``.

    Returns:
        The tokens of a block.
    """
    return _CPU_BLOCK_TOKENS if runtime == "vllm" and device == "cpu" else LAYOUTS[runtime].block_tokens


def kv_cache_in(
    runtime: str, info: ModelInfo, n_tokens: int, n_sequences: int, block_tokens: int | None = None
) -> KvCache:
    """Return the KV cache of a model as a runtime allocates it by its default options.

    Args:
        runtime: ``llama.cpp`` or ``vllm``.
        info: The model.
        n_tokens: The tokens of each sequence.
        n_sequences: The sequences that are generated at once.
        block_tokens: The size of a block, in tokens; None for the runtime's default. vLLM on a CPU has 128.

    Returns:
        The bytes of each layer.

    Raises:
        UnsupportedModelError: The cache is not known, because of a state, latent keys and values, or windows in vLLM.
    """
    layout = LAYOUTS[runtime]
    block_tokens = block_tokens or layout.block_tokens
    model = model_for_cache(info)
    if getattr(model.config.get_text_config(), "kv_lora_rank", None) is not None:
        raise UnsupportedModelError(
            f"the KV cache of {info.model.name} in {runtime} is not known: it has latent keys and values; count it for "
            "transformers"
        )
    one, two, all_tokens = (count_kv_cache(model, length, 1).layer_bytes for length in (1, 2, n_tokens))
    unit = 1.0 if layout.dtype_bytes is None else layout.dtype_bytes / (4 if info.dtype == "float32" else 2)
    layer_bytes = []
    for layer, (token_bytes, of_two, at_end) in enumerate(zip(one, two, all_tokens, strict=True)):
        if of_two != 2 * token_bytes:
            raise UnsupportedModelError(
                f"the KV cache of {info.model.name} in {runtime} is not known: layer {layer} keeps a state, not only "
                "keys and values; count it for transformers"
            )
        n_cells = _rounded(n_tokens, block_tokens)
        if at_end < n_tokens * token_bytes:  # transformers keeps the window without the newest token
            if layout.window_tokens is None:
                raise UnsupportedModelError(
                    f"the KV cache of {info.model.name} in {runtime} is not known: layer {layer} attends to a window, "
                    "whose blocks depend on the other layers; count it for transformers"
                )
            window = at_end // token_bytes + 1
            n_cells = min(n_cells, _rounded(window + layout.window_tokens, block_tokens))
        layer_bytes.append(round(n_sequences * n_cells * token_bytes * unit))
    return KvCache(tuple(layer_bytes), n_tokens, n_sequences)


def _rounded(n_tokens: int, block_tokens: int) -> int:
    """Return a number of tokens, rounded up to whole blocks."""
    return block_tokens * math.ceil(n_tokens / block_tokens)
