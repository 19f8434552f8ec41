"""The halves of a model's layers, before the model is loaded: they are found in layers with random weights.

A layer of each kind is built from the model's config. `raysearch.models.halves` finds its halves by running it. A
replica finds the halves of the model's own layers again before it runs one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from raysearch.calibration.batch import Inputs
from raysearch.core.mask import PARTS, Part
from raysearch.core.site import Sites
from raysearch.errors import UnsupportedModelError
from raysearch.models.halves import LayerHalves
from raysearch.models.loading import load_random_layers
from raysearch.models.spec import ModelInfo
from raysearch.models.stack import LayerStack

_N_TOKENS = 6  # of the row that the layers run on


def with_halves(info: ModelInfo) -> ModelInfo:
    """Return the same model, whose sites know the halves of the layers.

    Raises:
        UnsupportedModelError: A layer has no halves.
    """
    first_layers = _first_layers(info.sites)
    stack = _random_stack(info, first_layers)
    attention_parameters = {}
    for kind, halves, layer in zip(first_layers, _halves_in(stack, info), stack.layers, strict=True):
        attention_parameters[kind] = count_parameters(layer, halves.part_of)["attention"]
    kinds = [site.kind for site in info.sites]
    sites = Sites.of_layers(info.sites.layer_parameters, kinds, [attention_parameters[kind] for kind in kinds])
    return replace(info, sites=sites)


def halves_of(info: ModelInfo) -> tuple[LayerHalves, ...]:
    """Return the halves of each layer. Their modules are those of layers with random weights.

    Raises:
        UnsupportedModelError: A layer has no halves.
    """
    first_layers = _first_layers(info.sites)
    halves_of_kind = dict(zip(first_layers, _halves_in(_random_stack(info, first_layers), info), strict=True))
    return tuple(halves_of_kind[site.kind] for site in info.sites)


def count_parameters(layer: nn.Module, part_of: Mapping[str, Part]) -> dict[Part, int]:
    """Return the number of parameters of each half of a layer.

    Args:
        layer: The layer.
        part_of: The half of each parameter, by its name within the layer. Others are counted with the MLP.

    Returns:
        The numbers, by half.
    """
    totals: dict[Part, int] = dict.fromkeys(PARTS, 0)
    for name, weights in layer.named_parameters():
        totals[part_of.get(name, "mlp")] += weights.numel()
    return totals


def _first_layers(sites: Sites) -> dict[int, int]:
    """Return the first layer of each kind, by kind, in the order of the model."""
    return {kind: layers[0] for kind, layers in sites.by_kind(range(len(sites))).items()}


def _random_stack(info: ModelInfo, first_layers: Mapping[int, int]) -> LayerStack:
    """Build some layers of a model on the CPU, with random weights."""
    on_cpu = replace(info, model=replace(info.model, device="cpu", attention="auto", compile=False, fused_head=False))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LayerStack(load_random_layers(on_cpu, [*first_layers.values()]))


def _halves_in(stack: LayerStack, info: ModelInfo) -> list[LayerHalves]:
    """Return the halves of each layer of a stack.

    Raises:
        UnsupportedModelError: A layer has no halves.
    """
    ids = np.random.default_rng(0).integers(0, info.vocab_size, (1, _N_TOKENS))
    captured = stack.capture(Inputs(ids, None, None, np.zeros(0, np.int64)))
    hidden = torch.randn(captured.embedded.hidden.shape, generator=torch.Generator().manual_seed(0))
    state = replace(captured.embedded, hidden=hidden.to(captured.embedded.hidden))
    all_halves = []
    for layer in range(len(stack.layers)):
        halves = stack.halves(layer, state, captured)
        if isinstance(halves, str):
            raise UnsupportedModelError(
                f"{info.model.name} ({stack.kind}) can lose whole layers only, since one of its layers {halves}; use "
                "space=layers"
            )
        all_halves.append(halves)
    return all_halves
