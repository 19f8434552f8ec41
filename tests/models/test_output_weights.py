"""The output weights of a half are found by its behaviour, in every family whose layers have halves."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from raysearch.core.mask import PARTS, Half
from raysearch.core.site import Run
from raysearch.models.output_weights import OutputWeights, find_output_weights, with_values
from raysearch.models.stack import LayerStack
from tests.cases import assert_each
from tests.models.families import FAMILIES, HYBRIDS, OWN_WAYS
from tests.models.test_halves import WITHOUT_HALVES

LAYERS = (1, 2)
#: Families with norms after their attention and MLP, into which no matrix can be merged.
SANDWICHED = {"olmo2", "glm4", "gemma2", "gemma3_text", "gemma3", "exaone4"}
FACTOR = 1.7


class Probe:
    """A model with a random state for its layers."""

    def __init__(self, family: str) -> None:
        self.stack = LayerStack({**FAMILIES, **HYBRIDS, **OWN_WAYS}[family]())
        self.captured, self.state = self.stack.random_state()

    def find(self, half: Half) -> OutputWeights:
        return find_output_weights(self.stack, half, self.state, self.captured)

    @torch.no_grad()
    def added(self, half: Half, values: Mapping[str, Tensor]) -> Tensor:
        """Return what a half adds to the state, with other values of some weights."""
        with with_values(self.stack.layers[half.layer], values):
            after = self.stack.run(Run(*half), self.state.clone(), self.captured)
        return after.hidden - self.state.hidden

    def tensors(self, half: Half) -> dict[str, Tensor]:
        return dict(self.stack.layers[half.layer].named_parameters())


def test_changed_output_weights_scale_and_map_what_each_half_adds() -> None:
    def check(family: str) -> None:
        probe = Probe(family)
        for half in (Half(layer, part) for layer in LAYERS for part in PARTS):
            weights = probe.find(half)
            tensors = probe.tensors(half)
            added = probe.added(half, {})
            scaled = probe.added(half, weights.scaled(tensors, FACTOR))
            torch.testing.assert_close(scaled, FACTOR * added, rtol=1e-4, atol=1e-5, msg=f"{half} is not scaled")
            assert weights.can_be_mapped == (family not in SANDWICHED), f"{half} ends in {weights}"
            if weights.can_be_mapped:
                width = added.shape[-1]
                matrix = torch.eye(width) + 0.3 * torch.randn(width, width, generator=torch.Generator().manual_seed(1))
                mapped = probe.added(half, weights.mapped(tensors, matrix.double()))
                torch.testing.assert_close(mapped, added @ matrix.T, rtol=1e-3, atol=1e-4, msg=f"{half} is not mapped")
            torch.testing.assert_close(probe.added(half, {}), added, rtol=0, atol=0, msg="its weights are changed")

    assert_each((family for family in {**FAMILIES, **HYBRIDS, **OWN_WAYS} if family not in WITHOUT_HALVES), check)


def test_a_bias_and_all_experts_are_output_weights() -> None:
    names = {
        "starcoder2": {"mlp.c_proj.weight", "mlp.c_proj.bias"},  # its bias is 0
        "gpt_oss": {"mlp.experts.down_proj", "mlp.experts.down_proj_bias"},
        "gemma3_text": {"post_feedforward_layernorm.weight"},
        "llama": {"mlp.down_proj.weight"},
    }
    for family, expected in names.items():
        assert {weight.name for weight in Probe(family).find(Half(1, "mlp")).weights} == expected
