"""The halves of a layer are found by its behaviour, and computed as a program that knows the architecture would."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from raysearch.calibration.batch import Inputs
from raysearch.core.mask import Part
from raysearch.models.halves import LayerHalves, find_halves
from raysearch.models.layers import State
from raysearch.models.stack import LayerStack
from tests.cases import assert_each
from tests.models.families import FAMILIES, HYBRIDS, OWN_WAYS, STREAMS, UNEXPORTABLE, VOCABULARY

LAYER = 1
#: Families whose layers have no halves, with the reason.
WITHOUT_HALVES = {
    **dict.fromkeys(
        ("phi", "gpt_neox", "cohere", "cohere2", "gptj", "codegen", "bloom", "mpt", "bart"),
        "computes something else than its attention, then its MLP",
    ),
    **dict.fromkeys(("falcon", "mamba", "zamba2"), "has no part that computes each token by itself"),
    "longcat_flash": "has no part that mixes tokens",
    **dict.fromkeys(("gemma4_text", "gemma4_per_layer"), "uses layer_scalar in both halves"),
    "qwen4_exp_text": "does not run without one of its parts (AttributeError)",
    **dict.fromkeys(("deepseek_v4", "gemma3n_text"), "passes on more than one hidden state for each token"),
}


class Probe:
    """A layer of a model with its halves, and a random state that enters it."""

    def __init__(self, model: PreTrainedModel) -> None:
        stack = LayerStack(model)
        self.model = model
        ids = np.random.default_rng(0).integers(3, VOCABULARY, (1, 6))
        captured = stack.capture(Inputs(ids, None, None, np.zeros(0, np.int64)))
        generator = torch.Generator().manual_seed(0)
        self.layer: Any = stack.layers[LAYER]
        self.prefix = next(name for name, module in model.named_modules() if module is self.layer)
        self.next_layer: Any = stack.layers[LAYER + 1]
        self.call = captured.calls[LAYER]
        self.convention = stack._conventions[LAYER]
        self.state = replace(captured.embedded, hidden=torch.randn(captured.embedded.hidden.shape, generator=generator))
        self.halves = find_halves(self.layer, self.convention, self.state, self.call)

    def half(self, part: Part, hidden: Tensor) -> Tensor:
        """Return what a half of the layer computes from a hidden state."""
        assert isinstance(self.halves, LayerHalves)
        with self.halves.alone(part):
            return self.run(hidden)

    @torch.no_grad()
    def run(self, hidden: Tensor) -> Tensor:
        """Return what the layer computes from a hidden state."""
        return self.convention.run(self.layer, State(hidden.clone()), self.call).hidden

    @torch.no_grad()
    def attention_of(self, norm: Any) -> Tensor:
        """Return the output of the layer's attention after its norm."""
        return self.layer.self_attn(hidden_states=norm(self.state.hidden), **self.call.kwargs)[0]


def test_halves_of_families() -> None:
    builders = FAMILIES | HYBRIDS | OWN_WAYS | STREAMS | UNEXPORTABLE
    halves = {name: Probe(build()).halves for name, build in builders.items()}

    assert {name: reason for name, reason in halves.items() if isinstance(reason, str)} == WITHOUT_HALVES


@torch.no_grad()
def test_a_half_is_what_a_program_that_knows_the_family_computes() -> None:
    def check(name: str) -> None:
        probe = Probe(FAMILIES[name]())
        layer = probe.layer
        hidden = probe.state.hidden
        if name == "gemma2":
            attention = layer.post_attention_layernorm(probe.attention_of(layer.input_layernorm))
            mlp = layer.post_feedforward_layernorm(layer.mlp(layer.pre_feedforward_layernorm(hidden)))
        elif name == "olmo2":
            attention = layer.post_attention_layernorm(probe.attention_of(lambda states: states))
            mlp = layer.post_feedforward_layernorm(layer.mlp(hidden))
        else:
            attention = probe.attention_of(layer.input_layernorm)
            mlp = layer.mlp(layer.post_attention_layernorm(hidden))
        torch.testing.assert_close(probe.half("attention", hidden), hidden + attention, rtol=0, atol=0)
        torch.testing.assert_close(probe.half("mlp", hidden), hidden + mlp, rtol=0, atol=0)

    assert_each(["llama", "qwen3", "gemma2", "olmo2", "qwen3_moe"], check)


def test_each_tensor_belongs_to_a_half() -> None:
    def check(case: tuple[str, str]) -> None:
        name, norms_of_attention = case
        halves = Probe((FAMILIES | HYBRIDS)[name]()).halves
        assert isinstance(halves, LayerHalves)
        norms = {tensor for tensor, part in halves.part_of.items() if part == "attention" and "attn." not in tensor}
        assert norms == {f"{norm}.weight" for norm in norms_of_attention.split()}

    cases = [
        ("llama", "input_layernorm"),
        ("gemma2", "input_layernorm post_attention_layernorm"),
        ("olmo2", "post_attention_layernorm"),
        ("qwen3_next", "input_layernorm"),
    ]
    assert_each(cases, check)


@torch.no_grad()
def test_a_shifted_pair_is_an_ordinary_layer() -> None:
    """Without the MLP of a layer and the attention of the next one, the rest of both is a layer with their tensors."""
    probe = Probe(FAMILIES["gemma2"]())
    assert isinstance(probe.halves, LayerHalves)
    hidden = probe.half("attention", probe.state.hidden)
    tensors: Mapping[str, Tensor] = probe.next_layer.state_dict()
    of_next_mlp = {name: tensors[name] for name, part in probe.halves.part_of.items() if part == "mlp"}
    probe.layer.load_state_dict(of_next_mlp, strict=False)  # now the layer has its attention and the next layer's MLP
    expected = probe.half("mlp", hidden)

    torch.testing.assert_close(probe.run(probe.state.hidden), expected, rtol=0, atol=0)
