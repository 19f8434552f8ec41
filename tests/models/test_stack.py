"""The walk over any decoder's layers gives the logits of the model with those layers deleted."""

from __future__ import annotations

import functools
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from raysearch.calibration.batch import Batch
from raysearch.calibration.objectives.base import token_log_probs
from raysearch.core.mask import Mask
from raysearch.core.site import Sites
from raysearch.errors import UnsupportedModelError, UserError
from raysearch.models.stack import Captured, LayerStack, predicting
from raysearch.models.verification import relative_gap, verify
from tests.cases import assert_each
from tests.models.families import _WIDTHS, FAMILIES, HYBRIDS, N_LAYERS, PASSING, STREAMS, UNEXPORTABLE, VOCABULARY, tiny
from tests.models.test_verification import items
from tests.sentences import Sentences

MASKS = [Mask(), Mask.of(0), Mask.of(N_LAYERS - 1), Mask.of(1, 2), Mask.of(0, 1, 3)]
TOKENS = np.random.default_rng(7).integers(3, VOCABULARY, size=(2, 9))
SCORED = np.ones_like(TOKENS, dtype=np.bool_)
PADDING = np.arange(9)[None, :] < np.array([[9], [5]])
BATCH = Batch(TOKENS, SCORED)


def deleted(model: PreTrainedModel, mask: Mask) -> PreTrainedModel:
    """Return an independent model from which the layers are deleted. The walk must equal it."""
    model = deepcopy(model)
    config = model.config.get_text_config()
    kept_layers = Sites.of_equal_layers(N_LAYERS).kept_layers(mask)
    for name, part in list(model.named_modules()):
        if isinstance(part, nn.ModuleList) and len(part) == N_LAYERS and "vision" not in name:
            model.set_submodule(name, nn.ModuleList(part[layer] for layer in kept_layers))
            for place, layer in enumerate(kept_layers):
                for block in part[layer].modules():
                    if hasattr(block, "layer_idx"):
                        vars(block)["layer_idx"] = place
            break
    for key, value in vars(config).items():
        if isinstance(value, list) and len(value) == N_LAYERS:
            setattr(config, key, [value[layer] for layer in kept_layers])
    config.num_hidden_layers = len(kept_layers)
    if width := getattr(config, "hidden_size_per_layer_input", 0):
        slices = torch.arange(N_LAYERS * width).view(N_LAYERS, width)[list(kept_layers)].flatten()
        embeddings: Any = model.get_submodule("model.embed_tokens_per_layer")
        embeddings.weight = nn.Parameter(embeddings.weight[:, slices], requires_grad=False)
        projection: Any = model.get_submodule("model.per_layer_model_projection")
        projection.weight = nn.Parameter(projection.weight[slices], requires_grad=False)
    return model


def walk(stack: LayerStack, mask: Mask, captured: Captured | None = None) -> torch.Tensor:
    hidden = stack.walk(captured or stack.capture(BATCH.inputs), mask)
    return stack.logits(hidden.flatten(0, 1)).unflatten(0, hidden.shape[:2])


@pytest.fixture(scope="module")
def dense() -> Callable[[str], PreTrainedModel]:
    """The model of a family, built once for tests that do not change it."""
    return functools.cache(lambda family: (FAMILIES | HYBRIDS)[family]())


def test_the_walk_equals_the_model_with_the_layers_deleted(dense: Callable[[str], PreTrainedModel]) -> None:
    ids = torch.tensor(TOKENS)
    padding = torch.tensor(PADDING)

    def check(family: str) -> None:
        model = dense(family)
        stack = LayerStack(model)
        verify(stack)
        batches = (BATCH, Batch(TOKENS, SCORED & PADDING, PADDING))
        captured, captured_padded = (stack.capture(batch.inputs) for batch in batches)
        for mask in MASKS:
            pruned = deleted(model, mask)
            with torch.inference_mode():
                plain = pruned(input_ids=ids, use_cache=False).logits
                padded = pruned(input_ids=ids, attention_mask=padding.long(), use_cache=False).logits
            assert relative_gap(walk(stack, mask, captured), plain) <= 1e-6, mask
            walked = walk(stack, mask, captured_padded)
            assert relative_gap(walked[padding], padded[padding]) <= 1e-6, mask

    assert_each([*FAMILIES, *HYBRIDS], check)


def test_streams_and_what_layers_pass_on_are_walked() -> None:
    """They equal the model with the layers deleted: for rows together, and for rows by length each alone."""

    def check(family: str) -> None:
        model = (STREAMS | PASSING)[family]()
        stack = LayerStack(model)
        verify(stack)
        captured = stack.capture(BATCH.inputs)
        stack.by_length = True
        captured_by_length = stack.capture(Batch(TOKENS, SCORED & PADDING, PADDING).inputs)
        for mask in (Mask(), Mask.of(0), Mask.of(1, 2)):
            pruned = deleted(model, mask)
            with torch.inference_mode():
                plain = pruned(input_ids=torch.tensor(TOKENS), use_cache=False).logits
                rows = [torch.tensor(ids[real])[None] for ids, real in zip(TOKENS, PADDING, strict=True)]
                rows_alone = torch.cat([pruned(input_ids=row, use_cache=False).logits[0] for row in rows])
            assert relative_gap(walk(stack, mask, captured), plain) <= 1e-6, mask
            walked = walk(stack, mask, captured_by_length)[torch.tensor(PADDING)]
            assert relative_gap(walked, rows_alone) <= 1e-6, mask

    assert_each(STREAMS | PASSING, check)


def test_a_mask_without_what_a_layer_needs_is_refused(sentences: Sentences) -> None:
    stack = LayerStack(PASSING["hy_v4"]())
    with sentences.refused(UnsupportedModelError):
        walk(stack, Mask.of(0, 1, 2))


def test_an_error_of_the_first_forward_becomes_one_sentence(
    monkeypatch: pytest.MonkeyPatch, sentences: Sentences
) -> None:
    def fails(error: Exception, compiled: bool = False) -> LayerStack:
        def forward(*_: Any, **__: Any) -> None:
            raise error

        model = FAMILIES["llama"]()
        monkeypatch.setattr(model.get_submodule("model.layers.1.self_attn"), "forward", forward)
        return LayerStack(model, compiled)

    for compiled in (False, True):  # no compiled code has run yet
        with sentences.refused(UnsupportedModelError):
            fails(RuntimeError("odd\nsee above"), compiled)
    for error in (torch.OutOfMemoryError(), MemoryError(), RuntimeError("CUDA error: unspecified launch failure")):
        with pytest.raises(type(error)) as raised:
            fails(error)
        assert raised.value is error, "this is an error of the machine, not of the model"
    model = FAMILIES["llama"]()
    model.config._attn_implementation = "flash_attention_2"  # a CPU does not support it
    with sentences.refused(UnsupportedModelError):
        LayerStack(model)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs for the compiler. They run without it, since it would take half a minute."""
    graphs: list[Any] = []

    def keep(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=keep))
    torch._dynamo.reset()
    return graphs


def test_compiled_layers_give_the_same_logits(graphs: list[Any]) -> None:
    model = FAMILIES["llama"]()
    compiled = LayerStack(model, compiled=True)
    plain = LayerStack(model)
    verify(compiled)
    for mask in MASKS:
        assert relative_gap(walk(compiled, mask), walk(plain, mask)) < 1e-6
    assert 0 < len(graphs) < N_LAYERS  # the layers share their code


@torch.no_grad()
def test_halves_run_beside_compiled_layers(graphs: list[Any]) -> None:
    """They are not compiled, and the layers need no other graphs after them."""
    compiled = LayerStack(FAMILIES["llama"](), compiled=True)
    before = walk(compiled, Mask.of(2))
    n_graphs = len(graphs)
    mask = Mask.of("0m", "1a", "3a")
    assert relative_gap(walk(compiled, mask), walk(LayerStack(FAMILIES["llama"]()), mask)) < 1e-6
    assert torch.equal(walk(compiled, Mask.of(2)), before)
    assert len(graphs) == n_graphs


@torch.no_grad()
def test_log_probabilities_are_compiled_too(graphs: list[Any]) -> None:
    model = FAMILIES["llama"]()
    compiled = LayerStack(model, compiled=True)
    plain = LayerStack(model)
    states = predicting(plain.walk(plain.capture(BATCH.inputs), Mask()), BATCH.inputs)
    log_probs = token_log_probs(states, BATCH, compiled)
    assert len(graphs) == 1
    assert relative_gap(log_probs, token_log_probs(states, BATCH, plain)) <= 1e-6


@pytest.mark.parametrize(
    "operation",
    ["silu", "logsumexp"],
)
def test_wrong_compiled_code_is_refused(monkeypatch: pytest.MonkeyPatch, operation: str, sentences: Sentences) -> None:
    def compile_wrongly(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        for node in graph.graph.nodes:
            if operation in node.name:
                with graph.graph.inserting_after(node):
                    wrong = graph.graph.call_function(torch.mul, (node, 1.5))
                node.replace_all_uses_with(wrong, lambda user, wrong=wrong: user is not wrong)
        graph.recompile()
        return graph.forward

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=compile_wrongly))
    torch._dynamo.reset()
    with sentences.refused(UserError):
        verify(LayerStack(FAMILIES["llama"](), compiled=True))


@torch.no_grad()
def test_layers_of_many_kinds_are_all_compiled(
    graphs: list[Any], monkeypatch: pytest.MonkeyPatch, sentences: Sentences
) -> None:
    kinds = [nn.SiLU, nn.ReLU]
    monkeypatch.setattr(torch._dynamo.config, "recompile_limit", 1)  # the default of 8 would take longer to exceed
    model = tiny("llama", **_WIDTHS | {"num_hidden_layers": len(kinds)})
    stack = LayerStack(model, compiled=True)
    for layer, kind in zip(stack.layers, kinds, strict=True):
        setattr(layer.get_submodule("mlp"), "act_fn", kind())  # noqa: B010
    walk(stack, Mask())
    assert len(graphs) == len(kinds), "all kinds are compiled, in spite of dynamo's limit"
    torch._dynamo.reset()
    monkeypatch.setattr("raysearch.models.stack._MOST_GRAPHS", 1)
    with sentences.refused(UnsupportedModelError):
        verify(LayerStack(model, compiled=True))


def test_the_walk_equals_the_model_with_the_layers_bypassed() -> None:
    def check(family: str) -> None:
        stack = LayerStack(UNEXPORTABLE[family]())
        verify(stack)
        for mask in MASKS:
            with torch.inference_mode(), stack.bypassed(mask) as masked:
                expected = masked(input_ids=torch.tensor(TOKENS), use_cache=False).logits
            assert relative_gap(walk(stack, mask), expected) <= 1e-6, mask

    assert_each(UNEXPORTABLE, check)


def test_every_layer_of_the_reference_matters() -> None:
    """The comparison above would be empty if a removed layer did not change the logits."""

    def check(family: str) -> None:
        stack = LayerStack(FAMILIES[family]())
        dense = walk(stack, Mask())
        for layer in range(N_LAYERS):
            assert relative_gap(walk(stack, Mask.of(layer)), dense) > 1e-2, layer

    assert_each(["llama", "gpt2", "gemma3_text", "falcon"], check)


@pytest.mark.parametrize(
    "family", ["llama", "gemma3_text", "gpt2", "bloom", "opt", "deepseek_v4", "gemma3n_text", "zaya"]
)
def test_generation_with_a_cache_equals_the_model_with_the_layers_deleted(family: str) -> None:
    model = (FAMILIES | STREAMS | PASSING)[family]()
    prompt = torch.tensor(TOKENS[:1])
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
    masked: Any
    for mask in (Mask(), Mask.of(0), Mask.of(3), Mask.of(0, 1)):
        with LayerStack(model).bypassed(mask) as masked:
            tokens = masked.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
        pruned: Any = deleted(model, mask)
        expected = pruned.generate(prompt, attention_mask=torch.ones_like(prompt), **options, use_cache=False)
        assert tokens.tolist() == expected.tolist(), mask


def test_the_model_is_not_changed() -> None:
    model = FAMILIES["llama"]()
    stack = LayerStack(model)
    layers = list(model.get_submodule("model.layers").children())
    before = [dict(vars(layer)) for layer in layers]
    verify(stack)
    with pytest.raises(RuntimeError, match="stop"), stack.bypassed(Mask.of(1)):
        raise RuntimeError("stop")
    with pytest.raises(IndexError):
        stack.capture(Batch(np.full((1, 3), VOCABULARY + 5), SCORED[:1, :3]).inputs)
    assert [dict(vars(layer)) for layer in layers] == before


def test_bypassed_contexts_nest() -> None:
    model = FAMILIES["llama"]()
    stack = LayerStack(model)
    ids = torch.tensor(TOKENS)
    with torch.inference_mode(), stack.bypassed(Mask.of(1)), stack.bypassed(Mask.of(2)):
        logits = model(input_ids=ids, use_cache=False).logits
    assert torch.equal(logits, walk(stack, Mask.of(1, 2)))


def test_logits_of_chunks_equal_logits_of_all_positions() -> None:
    stack = LayerStack(FAMILIES["gemma2"]())
    hidden = stack.capture(BATCH.inputs).embedded.hidden.flatten(0, 1)
    chunks = torch.cat([stack.logits(chunk) for chunk in hidden.split(5)])
    torch.testing.assert_close(chunks, stack.logits(hidden), rtol=1e-6, atol=1e-6)


def test_a_16_bit_model_verifies() -> None:
    stack = LayerStack(FAMILIES["llama"]().bfloat16())
    verify(stack)
    assert walk(stack, Mask.of(1)).dtype == torch.bfloat16


def test_shared_layers_are_refused(sentences: Sentences) -> None:
    model = FAMILIES["llama"]()
    decoder = model.get_submodule("model")
    decoder.layers = nn.ModuleList([decoder.get_submodule("layers.0")] * N_LAYERS)
    with sentences.refused(UnsupportedModelError):
        LayerStack(model)


def test_the_last_hidden_state_is_that_of_transformers(dense: Callable[[str], PreTrainedModel]) -> None:
    def check(family: str) -> None:
        stack = LayerStack(dense(family))
        batch = items()
        real = torch.tensor(batch.attention_mask)
        with torch.no_grad():
            hidden = stack.walk(stack.capture(batch.inputs), Mask())
            expected = stack.model.base_model(
                input_ids=torch.tensor(batch.input_ids), attention_mask=real.long(), use_cache=False
            ).last_hidden_state
            assert relative_gap(stack.last_hidden(hidden[real]), expected[real]) <= 1e-6

    assert_each(FAMILIES, check)
