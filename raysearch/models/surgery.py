"""Deletes layers from a model in memory, for an ordinary, shallower checkpoint.

The config must describe the kept layers too, since a reloaded model is built from it alone: their number, and every
value that is given per layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from raysearch.core.mask import Mask
from raysearch.models.layers import depths
from raysearch.models.stack import LayerStack

#: "The first k layers are different": k becomes the number of those that are left.
_LEADING_COUNTS = ("first_k_dense_replace", "max_window_layers", "num_dense_layers", "moe_layer_start_index")
#: A list of layer numbers from 1.
_IDS_FROM_ONE = "ple_layer_ids"
#: Lists of layer numbers from 1, by the name of the dict that holds them.
_FROM_ONE = {"linear_attn_config": ("full_attn_layers", "kda_layers")}
#: The end of the names of settings by which every so many layers are of another kind.
_PERIOD = "layer_period"
#: The attributes with a block's place, which is also its slot in the KV cache.
_PLACES = ("layer_idx", "layer_id", "layer_index", "layer_number")


def remove_layers(stack: LayerStack, mask: Mask) -> PreTrainedModel:
    """Remove the mask's layers from the stack's model, in place; the stack must not be used any more.

    Returns:
        The same model with the kept layers, renumbered, and a config that describes them.
    """
    model, kept = stack.model, mask.kept(stack.n_layers)
    lists = ((name, part) for name, part in model.named_modules() if isinstance(part, nn.ModuleList))
    name = next(name for name, part in lists if tuple(part) == stack.layers)
    model.set_submodule(name, nn.ModuleList(stack.layers[layer] for layer in kept))
    for new, layer in enumerate(kept):
        for part in stack.layers[layer].modules():
            for place in _PLACES:
                if vars(part).get(place) == layer:
                    vars(part)[place] = new
    text = model.config.get_text_config()
    shrink_config(text, kept, stack.n_layers)
    _cut_embeddings_by_layer(model, kept, stack.n_layers, getattr(text, "hidden_size_per_layer_input", None))
    ties = getattr(model, "all_tied_weights_keys", {})
    return _made_anew(model) if any(weight.startswith(f"{name}.") for weight in ties) else model


def _cut_embeddings_by_layer(model: PreTrainedModel, kept: Sequence[int], n_layers: int, width: int | None) -> None:
    """Keep the kept layers' columns of the embeddings that Gemma makes for each layer, of this width; None for none."""
    if not width:
        return
    columns = torch.cat([torch.arange(layer * width, (layer + 1) * width) for layer in kept])
    whole = n_layers * width
    for name, part in model.named_modules():
        # A quantised weight may have another shape.
        if name.endswith("embed_tokens_per_layer") and isinstance(part, nn.Embedding) and part.weight.shape[1] == whole:
            part.weight = nn.Parameter(part.weight[:, columns], requires_grad=False)
            part.embedding_dim = len(columns)
        elif name.endswith("per_layer_model_projection") and len(part.weight) == whole:
            part.weight = nn.Parameter(part.weight[columns], requires_grad=False)
            part.out_features = len(columns)


def _made_anew(model: PreTrainedModel) -> PreTrainedModel:
    """Return a model of the same weights that is made of its config, and so knows which of them are one weight.

    Where they do not fit the config, the model itself is returned, and the export's verification says so.
    """
    weights = model.state_dict()
    try:
        with torch.device("meta"):
            fresh = type(model)(model.config)
    except Exception:  # whatever the class raises; the verification meets it too
        return model
    if {name: weight.shape for name, weight in fresh.state_dict().items()} != {
        name: weight.shape for name, weight in weights.items()
    }:
        return model
    fresh.load_state_dict(weights, assign=True)
    fresh.tie_weights()
    fresh.generation_config = model.generation_config
    return fresh.eval()


def rules_of_place(dense: PreTrainedConfig, config: PreTrainedConfig) -> str:
    """Return how the layers of a model may depend on their places, in brackets after a space; nothing if unknown.

    Args:
        dense: The config of the dense model.
        config: That of the pruned model.
    """
    kinds, dense_kinds = getattr(config, "layer_types", None), getattr(dense, "layer_types", None)
    periods = [f"{name}={value}" for name, value in config.to_dict().items() if name.endswith(_PERIOD) and value]
    if periods:
        return f" ({', '.join(periods)}: masks of whole periods leave them right)"
    if kinds and dense_kinds and kinds[-1] != dense_kinds[-1]:
        return f" (the last one would be of another kind, {kinds[-1]}: protect=[-1] keeps the last layer)"
    return ""


def shrink_config(config: PreTrainedConfig, kept: Sequence[int], n_layers: int) -> None:
    """Rewrite the (text) config of a dense model of `n_layers` for the kept ones, ascending, in place.

    Per-layer lists are filtered, lists and keys of layer indices renumbered, and counts of leading layers recounted.
    Other rules that depend on the layers' places (a period, say) cannot be rewritten; the export's verification detects
    them.
    """
    by_layer = config.to_dict().get("per_layer_config") if getattr(config, "is_heterogeneous", False) else None
    if by_layer is not None:
        config.per_layer_config = None  # its places are those of the dense model
    changed = cut_values(vars(config), kept, n_layers)
    # Last, since the config may derive other values from its depth, which xLSTM has twice.
    depth = {name: len(kept) for name, number in depths(config).items() if number == n_layers}
    for name, value in (changed | depth).items():
        setattr(config, name, value)
    if by_layer is not None:
        given = {int(layer): values for layer, values in by_layer.items()}
        config.per_layer_config = {place: given[layer] for place, layer in enumerate(kept) if layer in given}


def cut_values(values: Mapping[str, Any], kept: Sequence[int], n_layers: int) -> dict[str, Any]:
    """Return the values of a config that change with its layers, without their number, by name.

    Args:
        values: Of a config in memory or of a file, by name.
        kept: The layers that are left, ascending.
        n_layers: N, the layers of the dense model.
    """
    changed: dict[str, Any] = {}
    for name, value in values.items():
        if name.startswith("_") or name.endswith(("token_id", "token_ids")):
            continue
        if name == _IDS_FROM_ONE and value:
            changed[name] = [kept.index(number - 1) + 1 for number in value if number - 1 in kept]
        elif isinstance(value, (list, tuple)) and _are_indices(name, value, n_layers):
            changed[name] = [kept.index(layer) for layer in value if layer in kept]
        elif isinstance(value, (list, tuple)) and len(value) == n_layers:
            changed[name] = [value[layer] for layer in kept]
        elif isinstance(value, str) and name.endswith("_pattern") and len(value) == n_layers:  # a letter a layer
            changed[name] = "".join(value[layer] for layer in kept)
        elif name == "block_types" and value:  # repeated until there are enough; they become a list of all
            changed[name] = [value[layer % len(value)] for layer in kept]
        elif name in _LEADING_COUNTS and isinstance(value, int):
            changed[name] = sum(layer < value for layer in kept)
        elif name == "moe_layer_end_index" and isinstance(value, int) and value >= 0:  # the last that is different
            changed[name] = sum(layer <= value for layer in kept) - 1
        elif name == "scale_depth" and value is not None:  # of residuals, times the square root of the depth
            changed[name] = value * math.sqrt(len(kept) / n_layers)
        elif name in _FROM_ONE and isinstance(value, dict):
            numbers = {of: [kept.index(one - 1) + 1 for one in value[of] if one - 1 in kept] for of in _FROM_ONE[name]}
            changed[name] = value | numbers
    return changed


def _are_indices(name: str, value: Sequence[Any], n_layers: int) -> bool:
    """Return whether a list holds layer indices, as ``mlp_only_layers=[0, 2]``, and not a value for each layer."""
    ascending = all(type(item) is int and 0 <= item < n_layers for item in value) and list(value) == sorted(set(value))
    complete = len(value) < n_layers or list(value) == list(range(n_layers))
    return ascending and complete and ("layer" in name or "idx" in name or "indices" in name)
