"""The KV cache, counted without values, has the bytes of the real cache: dense, bypassed and exported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import Cache, PreTrainedModel

from raysearch.core.kv_cache import KvCache
from raysearch.core.mask import Mask
from raysearch.core.site import Sites
from raysearch.errors import UnsupportedModelError
from raysearch.models.kv_cache import count_kv_cache
from raysearch.models.stack import LayerStack
from raysearch.models.surgery import remove_layers
from tests.models.families import BY_LENGTH, FAMILIES, HYBRIDS, OWN_WAYS, STREAMS
from tests.sentences import Sentences

N_SEQUENCES = 2
N_TOKENS = 61  # more than a window, and than the short forwards of the count
UNKNOWN = {"recurrent_gemma", "bart", "blenderbot", "qwen4_exp_text"}
COUNTED = {
    name: build
    for name, build in {**FAMILIES, **HYBRIDS, **OWN_WAYS, **BY_LENGTH, **STREAMS}.items()
    if name not in UNKNOWN
}


def real_bytes(model: PreTrainedModel, n_tokens: int) -> list[int]:
    """Generate, and return the bytes of each layer of the real cache, which holds `n_tokens` tokens."""
    n_new = 9
    prompt = torch.randint(3, 100, (N_SEQUENCES, n_tokens + 1 - n_new), generator=torch.Generator().manual_seed(0))
    output = model.generate(  # type: ignore[operator]
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=n_new,
        min_new_tokens=n_new,
        do_sample=False,
        use_cache=True,
        return_dict_in_generate=True,
    )
    (cache,) = (value for value in output.values() if isinstance(value, Cache))
    return [sum({id(tensor): tensor.nbytes for tensor in tensors_of(vars(layer))}.values()) for layer in cache.layers]


def tensors_of(values: dict[Any, object]) -> Iterator[torch.Tensor]:
    for value in values.values():
        if isinstance(value, torch.Tensor) and value.ndim:  # a scalar is the size of a window
            yield value
        elif isinstance(value, dict):
            yield from tensors_of(value)


def test_every_byte_is_counted(subtests: pytest.Subtests) -> None:
    for name, build in COUNTED.items():
        with subtests.test(name):
            counted = count_kv_cache(build().to("meta"), N_TOKENS, N_SEQUENCES)  # type: ignore[arg-type]
            assert sum(counted.layer_bytes) == sum(real_bytes(build(), N_TOKENS))


def test_a_mask_keeps_the_bytes_of_its_layers(subtests: pytest.Subtests) -> None:
    """A bypassed layer has unused keys, which are no part of the pruned model; an exported model has none."""
    mask = Mask.of(1)
    for name in ("llama", "gemma3_text", "deepseek_v3", "qwen3_next", "falcon_h1", "lfm2", "gpt_oss", "mamba"):
        with subtests.test(name):
            stack = LayerStack(COUNTED[name]())
            counted = count_kv_cache(COUNTED[name]().to("meta"), N_TOKENS, N_SEQUENCES)  # type: ignore[arg-type]
            with stack.bypassed(mask) as bypassed:
                kept_bytes = [size for layer, size in enumerate(real_bytes(bypassed, N_TOKENS)) if layer not in mask]
            assert sum(kept_bytes) == counted.size_without(mask, stack.sites)
            exported = remove_layers(stack, mask)
            assert sum(real_bytes(exported, N_TOKENS)) == counted.size_without(mask, stack.sites)


def test_windows_and_states_stop_growing() -> None:
    short, long = (count_kv_cache(FAMILIES["gemma2"]().to("meta"), length, 1) for length in (5, 4000))  # type: ignore[arg-type]
    keys_and_values = 2 * 2 * 8 * 4  # of two heads of 8 numbers in float32
    assert short.layer_bytes == (3 * keys_and_values, 5 * keys_and_values) * 2, "a window of 4 keeps the last 3 tokens"
    assert long.layer_bytes == (3 * keys_and_values, 4000 * keys_and_values) * 2
    states = [count_kv_cache(HYBRIDS["mamba"]().to("meta"), length, 1) for length in (5, 4000)]  # type: ignore[arg-type]
    assert states[0].layer_bytes == states[1].layer_bytes


def test_a_cache_that_is_not_of_layers_is_refused(sentences: Sentences) -> None:
    for name in ("recurrent_gemma", "bart"):
        with sentences.refused(UnsupportedModelError, name):
            count_kv_cache({**HYBRIDS, **OWN_WAYS}[name]().to("meta"), 5, 1)  # type: ignore[arg-type]


def test_a_mask_removes_the_bytes_of_its_layers() -> None:
    cache = KvCache((10, 20, 30), n_tokens=1, n_sequences=1)
    sizes = {mask: cache.size_without(mask, Sites.of_equal_layers(3)) for mask in (Mask(), Mask.of(0, 2))}
    assert [*sizes.values()] == [60, 20]
    assert cache.size_without(Mask.of("0m", "1a", "2m"), Sites.of_equal_layers(3)) == 40, "only attentions have a cache"
