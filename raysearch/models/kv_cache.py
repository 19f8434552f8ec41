"""Counts the bytes of a model's KV cache, layer by layer, by a forward of the model without values.

The model's own code gives the cache its shapes. So keys and values of few heads, latent ones (MLA), windows, shared
caches, and the states of linear attention are counted without a table of architectures.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel

from raysearch.checkpoints.quiet import quiet
from raysearch.core.kv_cache import KvCache
from raysearch.errors import UnsupportedModelError
from raysearch.models.layers import largest_list, replaced
from raysearch.models.loading import load_config, resolve_dtype, without_weights
from raysearch.models.spec import ModelInfo
from raysearch.text.sentences import first_line

#: The numbers of tokens of two short forwards. A layer whose cache is as large after both of them has a state of
#: constant size, or a window that is shorter.
_SHORT = (16, 48)


def kv_cache_of(info: ModelInfo, n_tokens: int, n_sequences: int) -> KvCache:
    """Return the KV cache of a model in transformers. No weight is read, and nothing is computed.

    Args:
        info: The model.
        n_tokens: The tokens of each sequence.
        n_sequences: The sequences that are generated at once.

    Returns:
        The bytes of each layer, in the dtypes of the model's own code.

    Raises:
        UnsupportedModelError: transformers keeps no cache for the model, or it does not belong to single layers.
    """
    return count_kv_cache(model_for_cache(info), n_tokens, n_sequences)


def model_for_cache(info: ModelInfo) -> PreTrainedModel:
    """Return a model on the meta device whose cache has the dtypes of the model."""
    config = load_config(info.model)
    for part in (config, config.get_text_config()):
        vars(part).pop("quantization_config", None)  # layers compute, and so cache, in the dtype of `info`
    return without_weights(info.model, config, resolve_dtype(info.dtype, config)).eval()


def count_kv_cache(model: PreTrainedModel, n_tokens: int, n_sequences: int) -> KvCache:
    """Return the KV cache of a model on the meta device.

    Args:
        model: The model, in eval mode.
        n_tokens: The tokens of each sequence.
        n_sequences: The sequences that are generated at once.

    Returns:
        The bytes of each layer.

    Raises:
        UnsupportedModelError: transformers keeps no cache for the model, or it does not belong to single layers.
    """
    layers = largest_list(model)

    def counted(length: int, running: Collection[int] = range(len(layers))) -> list[int]:
        try:
            return _layer_bytes(model, layers, running, length, n_sequences)
        except UnsupportedModelError:
            raise
        except Exception as error:
            kind = model.config.model_type
            raise UnsupportedModelError(
                f"the KV cache of {kind} is not known, since {kind} does not run without values "
                f"({type(error).__name__}: {first_line(error)}); leave budget.kv_memory out"
            ) from error

    if n_tokens <= max(_SHORT):
        return KvCache(tuple(counted(n_tokens)), n_tokens, n_sequences)
    # Some layers with a state run token by token, so only the layers whose cache grows run on all tokens.
    short, longer = map(counted, _SHORT)
    growing = [layer for layer, (before, after) in enumerate(zip(short, longer, strict=True)) if before != after]
    at_end = counted(n_tokens, growing) if growing else longer
    layer_bytes = [at_end[layer] if layer in growing else size for layer, size in enumerate(longer)]
    return KvCache(tuple(layer_bytes), n_tokens, n_sequences)


@torch.no_grad()
def _layer_bytes(
    model: PreTrainedModel, layers: Sequence[nn.Module], running: Collection[int], n_tokens: int, n_sequences: int
) -> list[int]:
    """Return the bytes that each layer adds to the cache; the layers that are not `running` do nothing."""
    layer_bytes = [0] * len(layers)

    def run(layer: int, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        caches = _caches((*args, *kwargs.values()))
        before = _size(caches)
        output = forward(*args, **kwargs)
        layer_bytes[layer] += _size(caches) - before
        return output

    ids = torch.zeros(n_sequences, n_tokens, dtype=torch.int64, device="meta")
    forwards = {block: functools.partial(run, layer, block.forward) for layer, block in enumerate(layers)}
    with quiet(), _shapes_only(model), replaced(forwards):
        output = model(input_ids=ids, use_cache=True)
    total = _size(_caches(output.values()))
    kind = model.config.model_type
    if not total:
        raise UnsupportedModelError(f"transformers keeps no KV cache for {kind}; leave budget.kv_memory out")
    if total != sum(layer_bytes):
        raise UnsupportedModelError(
            f"the KV cache of {kind} does not belong to single layers: they add {sum(layer_bytes)} of its {total} "
            "bytes; leave budget.kv_memory out"
        )
    return layer_bytes


def _caches(values: Any) -> list[Cache]:
    return [value for value in values if isinstance(value, Cache)]


def _size(caches: Sequence[Cache]) -> int:
    """Return the bytes of the tensors of caches; shared tensors count once."""
    by_id: dict[int, Tensor] = {}

    def collect(value: Any) -> None:
        if isinstance(value, Tensor):
            by_id[id(value)] = value
        elif isinstance(value, dict):
            for item in value.values():
                collect(item)
        elif isinstance(value, (list, tuple)):
            for item in value:
                collect(item)

    for cache in caches:
        for layer in cache.layers:
            for name, value in vars(layer).items():
                if not name.startswith("_"):
                    collect(value)
    return sum(tensor.numel() * tensor.element_size() for tensor in by_id.values())


@contextlib.contextmanager
def _shapes_only(model: PreTrainedModel) -> Iterator[None]:
    """Let a model run without values: a module that reads values, such as experts, returns its input."""

    def attempt(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return forward(*args, **kwargs)
        except Exception:
            values = (*args, *kwargs.values())
            hidden = next((value for value in values if isinstance(value, Tensor) and value.is_floating_point()), None)
            if _caches(values) or hidden is None:
                raise
            return hidden

    text = model.config.get_text_config()
    before = text.pad_token_id  # with it, some models look for padding among the tokens
    text.pad_token_id = None
    try:
        with replaced(
            {part: functools.partial(attempt, part.forward) for part in model.modules() if part is not model}
        ):
            yield
    finally:
        text.pad_token_id = before
