"""The halves of a model's layers, before the model is loaded: they are found in layers with random weights.

A layer of each kind is built from the model's config. `raysearch.models.halves` finds its halves by running it. A
replica finds the halves of the model's own layers again before it runs one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from raysearch.core.site import Sites
from raysearch.models.halves import LayerHalves
from raysearch.models.loading import load_random_layers
from raysearch.models.spec import ModelInfo
from raysearch.models.stack import LayerStack


def with_halves(info: ModelInfo) -> ModelInfo:
    """Return the same model, whose sites know the halves of the layers.

    Raises:
        UnsupportedModelError: A layer has no halves.
    """
    first_layers = _first_layers(info.sites)
    attentions = _random_stack(info, first_layers).sites_with_halves.parts[::2]
    attention_of_kind = dict(zip(first_layers, attentions, strict=True))
    kinds = [site.kind for site in info.sites]
    attention_parameters = [attention_of_kind[kind].parameters for kind in kinds]
    return replace(info, sites=Sites.of_layers(info.sites.layer_parameters, kinds, attention_parameters))


def halves_of(info: ModelInfo) -> tuple[LayerHalves, ...]:
    """Return the halves of each layer. Their modules are those of layers with random weights.

    Raises:
        UnsupportedModelError: A layer has no halves.
    """
    first_layers = _first_layers(info.sites)
    halves_of_kind = dict(zip(first_layers, _random_stack(info, first_layers).halves, strict=True))
    return tuple(halves_of_kind[site.kind] for site in info.sites)


def _first_layers(sites: Sites) -> dict[int, int]:
    """Return the first layer of each kind, by kind, in the order of the model."""
    return {kind: layers[0] for kind, layers in sites.by_kind(range(len(sites))).items()}


def _random_stack(info: ModelInfo, first_layers: Mapping[int, int]) -> LayerStack:
    """Build some layers of a model on the CPU, with random weights."""
    on_cpu = replace(info, model=replace(info.model, device="cpu", attention="auto", compile=False, fused_head=False))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LayerStack(load_random_layers(on_cpu, [*first_layers.values()]))
