"""Without halves of layers, a model computes what it computes if these attentions and MLPs return zeros."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from raysearch.calibration.batch import Batch
from raysearch.core.mask import Mask, Part
from raysearch.core.site import Run
from raysearch.errors import UnsupportedModelError
from raysearch.models.kv_cache import count_kv_cache
from raysearch.models.stack import LayerStack
from raysearch.models.verification import relative_gap
from tests.cases import assert_each
from tests.models.families import BY_LENGTH, FAMILIES, HYBRIDS, UNEXPORTABLE, VOCABULARY
from tests.models.test_kv_cache import real_bytes
from tests.sentences import Sentences

MASKS = [Mask.of(0, "1m", "2a"), Mask.of("0a"), Mask.of("0m", "1a", "3m"), Mask.of("1a", "2a", "3a"), Mask.of("2m", 3)]
TOKENS = np.random.default_rng(7).integers(3, VOCABULARY, size=(2, 9))
PADDING = np.arange(9)[None, :] < np.array([[9], [5]])
#: The names of the modules of a half in the code of the families.
NAMES: dict[Part, set[str]] = {
    "attention": {"self_attn", "linear_attn", "conv", "attn", "mamba", "temporal_block", "self_attention"},
    "mlp": {"mlp", "feed_forward", "moe", "block_sparse_moe", "mlp_block", "fc1", "fc2"},
}
ALL = FAMILIES | HYBRIDS | UNEXPORTABLE | BY_LENGTH
CHECKED = [
    *["llama", "qwen2", "qwen3", "gpt2", "opt", "gemma2", "gemma3_text", "olmo2", "mistral", "granite", "smollm3"],
    *["qwen3_moe", "mixtral", "olmoe", "gpt_oss", "deepseek_v3", "glm4_moe", "gemma3", "phi3_longrope"],
    *["qwen3_next", "lfm2", "jamba", "falcon_h1", "recurrent_gemma", "kimi_linear"],
]


@contextlib.contextmanager
def silenced(layers: tuple[nn.Module, ...], mask: Mask) -> Iterator[None]:
    """Let the modules that a mask removes return zeros. This knows the names of modules, which raysearch does not."""

    def zeros(module: nn.Module, args: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (torch.zeros_like(output[0]), *output[1:])
        return torch.zeros_like(output)

    with contextlib.ExitStack() as hooks:
        for layer, part in mask.all_halves:
            children = dict(layers[layer].named_children())
            modules = [children[name] for name in NAMES[part] & {*children}]
            assert modules, f"no {part} among {[*children]}"
            for module in modules:
                hooks.callback(module.register_forward_hook(zeros).remove)
        yield


def plain(model: PreTrainedModel, padded: bool = False) -> Tensor:
    """Return the logits of the model's own forward."""
    mask = torch.tensor(PADDING).long() if padded else None
    with torch.inference_mode():
        logits: Tensor = model(input_ids=torch.tensor(TOKENS), attention_mask=mask, use_cache=False).logits
    return logits


def test_a_walk_equals_the_model_whose_halves_return_zeros() -> None:
    padding = torch.tensor(PADDING)
    batches = (Batch(TOKENS, np.ones_like(PADDING)), Batch(TOKENS, PADDING, PADDING))

    def check(family: str) -> None:
        model = ALL[family]()
        stack = LayerStack(model)
        stack.by_length = family in BY_LENGTH
        captured, captured_padded = (stack.capture(batch.inputs) for batch in batches)
        dense = plain(model)
        for mask in MASKS:
            with silenced(stack.layers, mask):
                expected, expected_padded = plain(model), plain(model, padded=True)
            walks = [stack.walk(inputs, mask) for inputs in (captured, captured_padded)]
            logits, padded = (stack.logits(walk.flatten(0, 1)).unflatten(0, walk.shape[:2]) for walk in walks)
            assert relative_gap(logits, dense) > 1e-3, mask
            assert relative_gap(logits, expected) <= 1e-5, mask
            assert relative_gap(padded[padding], expected_padded[padding]) <= 1e-5, mask
            with stack.bypassed(mask):
                assert relative_gap(plain(model), expected) <= 1e-5, mask

    assert_each(CHECKED, check)


@torch.no_grad()
def test_both_halves_are_the_layer() -> None:
    """So the loss of a mask does not depend on whether it names a layer or its halves."""

    def check(family: str) -> None:
        stack = LayerStack(ALL[family]())
        captured = stack.capture(Batch(TOKENS, PADDING, PADDING).inputs)
        state = captured.embedded
        for layer in range(len(stack.layers)):
            between = stack.run(Run(layer, "attention"), state.clone(), captured)
            after = stack.run(Run(layer, "mlp"), between, captured)
            state = stack.run(Run(layer), state.clone(), captured)
            assert torch.equal(after.hidden, state.hidden), layer

    assert_each(CHECKED, check)


def test_generation_with_a_cache_equals_generation_without_one() -> None:
    prompt = torch.tensor(TOKENS[:1])
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None}

    def check(family: str) -> None:
        model: Any = ALL[family]()
        stack = LayerStack(model)
        for mask in MASKS:
            with stack.bypassed(mask):
                tokens = model.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
            with silenced(stack.layers, mask):
                expected = model.generate(prompt, attention_mask=torch.ones_like(prompt), **options, use_cache=False)
            assert tokens.tolist() == expected.tolist(), mask

    families = ["llama", "gemma2", "gemma3_text", "gpt2", "qwen3_moe", "gpt_oss", "deepseek_v3", "mistral", "olmo2"]
    assert_each([*families, "qwen3_next", "lfm2", "falcon_h1"], check)


def test_the_cache_of_a_layer_goes_with_its_attention() -> None:
    """A layer without attention has unused keys, by which tokens are counted."""
    n_tokens = 61
    mask = Mask.of(0, "1m", "2a")

    def check(family: str) -> None:
        stack = LayerStack(ALL[family]())
        counted = count_kv_cache(ALL[family]().to("meta"), n_tokens, 2)  # type: ignore[arg-type]
        with stack.bypassed(mask) as bypassed:
            layer_bytes = real_bytes(bypassed, n_tokens)
        assert counted.size_without(mask, stack.sites) == layer_bytes[1] + layer_bytes[3]

    assert_each(["llama", "gemma3_text", "deepseek_v3", "falcon_h1", "gpt_oss"], check)


def test_a_bypassed_half_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The norms of the half do nothing, either."""
    norm = type(FAMILIES["gemma2"]().get_submodule("model.norm"))
    run_norm = norm.forward
    model = FAMILIES["gemma2"]()
    stack = LayerStack(model)
    names = {module: name for name, module in stack.layers[1].named_modules()}
    called: set[str] = set()

    def note(module: nn.Module, *args: Any) -> Any:
        called.add(names.get(module, ""))
        return run_norm(module, *args)

    assert stack.halves, "they have been found, so that layers run no more for that"
    monkeypatch.setattr(norm, "forward", note)
    for name in ("self_attn.q_proj", "mlp.up_proj"):
        stack.layers[1].get_submodule(name).register_forward_hook(lambda *_, name=name: called.add(name))
    of_attention = {"self_attn.q_proj", "input_layernorm", "post_attention_layernorm"}
    of_mlp = {"mlp.up_proj", "pre_feedforward_layernorm", "post_feedforward_layernorm"}
    for mask, expected in ((Mask(), of_attention | of_mlp), (Mask.of("1a"), of_mlp), (Mask.of("1m"), of_attention)):
        called.clear()
        with stack.bypassed(mask):
            plain(model)
        assert called - {""} == expected, mask


def test_removed_tensors_are_those_of_the_half() -> None:
    stack = LayerStack(FAMILIES["gemma2"]())
    sites = stack.sites_with_halves
    for mask in (Mask.of("1a"), Mask.of("1m", 3), Mask.of("1m", "2a")):
        assert sum(tensor.numel() for tensor in stack.removed_tensors(mask)) == sites.parameters(mask)
    assert sites.parameters(Mask.of("1m", "2a")) == sites.parameters(Mask.of(1))


def test_a_model_without_halves_is_refused(sentences: Sentences) -> None:
    stack = LayerStack(FAMILIES["phi"]())
    with sentences.refused(UnsupportedModelError), stack.bypassed(Mask.of("1a")):
        plain(stack.model)
    assert stack.sites_for([Mask.of(1)]) == stack.sites
