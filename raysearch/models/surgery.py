"""Deletes layers from a model in memory, for an ordinary, shallower checkpoint.

The config must describe the kept layers too, since a reloaded model is built from it: their number, and every value
that is given for each layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from raysearch.core.mask import Mask
from raysearch.models.layers import depths
from raysearch.models.stack import LayerStack

#: Numbers k with the meaning "the first k layers are different"; k becomes the number of these that are kept.
_LEADING_COUNTS = ("first_k_dense_replace", "max_window_layers", "num_dense_layers", "moe_layer_start_index")
#: A list of layer numbers that start at 1.
_IDS_FROM_ONE = "ple_layer_ids"
#: Lists of layer numbers that start at 1, by the name of the dict that holds them.
_FROM_ONE = {"linear_attn_config": ("full_attn_layers", "kda_layers")}
#: The end of the names of settings with a period, in layers, after which a layer is of another kind.
_PERIOD = "layer_period"
#: The attributes of modules with a layer's place, which is also its slot in the KV cache.
_PLACES = ("layer_idx", "layer_id", "layer_index", "layer_number")


def remove_layers(stack: LayerStack, mask: Mask) -> PreTrainedModel:
    """Remove the mask's layers from the stack's model, in place.

    Args:
        stack: The layers of the dense model. It must not be used afterwards.
        mask: The layers to remove.

    Returns:
        A model with the weights of the kept layers, renumbered, and a config that describes them.
    """
    model = stack.model
    kept_layers = stack.sites.kept_layers(mask)
    n_layers = len(stack.layers)
    lists = ((name, part) for name, part in model.named_modules() if isinstance(part, nn.ModuleList))
    name = next(name for name, part in lists if tuple(part) == stack.layers)
    model.set_submodule(name, nn.ModuleList(stack.layers[layer] for layer in kept_layers))
    for index, layer in enumerate(kept_layers):
        for part in stack.layers[layer].modules():
            for attribute in _PLACES:
                if vars(part).get(attribute) == layer:
                    vars(part)[attribute] = index
    text = model.config.get_text_config()
    shrink_config(text, kept_layers, n_layers)
    _cut_embeddings_by_layer(model, kept_layers, n_layers, getattr(text, "hidden_size_per_layer_input", None))
    ties = getattr(model, "all_tied_weights_keys", {})
    return _rebuilt(model) if any(weight.startswith(f"{name}.") for weight in ties) else model


def _cut_embeddings_by_layer(
    model: PreTrainedModel, kept_layers: Sequence[int], n_layers: int, width: int | None
) -> None:
    """Cut the embeddings that Gemma computes for each layer, `width` columns each, to the kept layers' columns."""
    if not width:
        return
    columns = torch.cat([torch.arange(layer * width, (layer + 1) * width) for layer in kept_layers])
    dense_width = n_layers * width
    for name, part in model.named_modules():
        # A quantised weight may have another shape.
        if (
            name.endswith("embed_tokens_per_layer")
            and isinstance(part, nn.Embedding)
            and part.weight.shape[1] == dense_width
        ):
            part.weight = nn.Parameter(part.weight[:, columns], requires_grad=False)
            part.embedding_dim = len(columns)
        elif name.endswith("per_layer_model_projection") and len(part.weight) == dense_width:
            part.weight = nn.Parameter(part.weight[columns], requires_grad=False)
            part.out_features = len(columns)


def _rebuilt(model: PreTrainedModel) -> PreTrainedModel:
    """Return a new model of the same config and weights, whose list of tied weights is right for the kept layers.

    If the weights do not fit the config, return the model itself; the export's verification reports that.
    """
    weights = model.state_dict()
    try:
        with torch.device("meta"):
            fresh = type(model)(model.config)
    except Exception:  # whatever the class raises; the verification raises it too
        return model
    if _shapes(fresh.state_dict()) != _shapes(weights):
        return model
    fresh.load_state_dict(weights, assign=True)
    fresh.tie_weights()
    fresh.generation_config = model.generation_config
    return fresh.eval()


def _shapes(weights: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: weight.shape for name, weight in weights.items()}


def rules_of_place(dense: PreTrainedConfig, config: PreTrainedConfig) -> str:
    """Return how the layers of a model may depend on their places, for an error message.

    Args:
        dense: The config of the dense model.
        config: The config of the pruned model.

    Returns:
        A text in brackets after a space; empty if nothing is known.
    """
    kinds = getattr(config, "layer_types", None)
    dense_kinds = getattr(dense, "layer_types", None)
    periods = [f"{name}={value}" for name, value in config.to_dict().items() if name.endswith(_PERIOD) and value]
    if periods:
        return f" ({', '.join(periods)}: masks of whole periods do not change them)"
    if kinds and dense_kinds and kinds[-1] != dense_kinds[-1]:
        return f" (the last one would be of another kind, {kinds[-1]}: protect=[-1] keeps the last layer)"
    return ""


def shrink_config(config: PreTrainedConfig, kept_layers: Sequence[int], n_layers: int) -> None:
    """Rewrite the (text) config of a dense model for the kept layers, in place.

    Lists with a value for each layer are cut, lists and keys of layer indices are renumbered, and numbers of leading
    layers are counted again. Other rules that depend on the layers' places, such as a period, cannot be rewritten; the
    export's verification detects them.

    Args:
        config: The config.
        kept_layers: The indices of the kept layers in the dense model, ascending.
        n_layers: N, the layers of the dense model.
    """
    by_layer = config.to_dict().get("per_layer_config") if getattr(config, "is_heterogeneous", False) else None
    if by_layer is not None:
        config.per_layer_config = None  # its keys are the places in the dense model
    changed = cut_values(vars(config), kept_layers, n_layers)
    # The depth is set last, since a config may derive other values from it. xLSTM has it under two names.
    depth = {name: len(kept_layers) for name, number in depths(config).items() if number == n_layers}
    for name, value in (changed | depth).items():
        setattr(config, name, value)
    if by_layer is not None:
        values_by_layer = {int(layer): values for layer, values in by_layer.items()}
        config.per_layer_config = {
            index: values_by_layer[layer] for index, layer in enumerate(kept_layers) if layer in values_by_layer
        }


def cut_values(values: Mapping[str, Any], kept_layers: Sequence[int], n_layers: int) -> dict[str, Any]:
    """Return the new values of a config's settings that depend on its layers, except the number of layers.

    Args:
        values: The values of a config, in memory or in a file, by name.
        kept_layers: The indices of the kept layers in the dense model, ascending.
        n_layers: N, the layers of the dense model.

    Returns:
        The changed values by name.
    """
    changed: dict[str, Any] = {}
    for name, value in values.items():
        if name.startswith("_") or name.endswith(("token_id", "token_ids")):
            continue
        if name == _IDS_FROM_ONE and value:
            changed[name] = _renumbered_from_one(value, kept_layers)
        elif isinstance(value, (list, tuple)) and _are_indices(name, value, n_layers):
            changed[name] = [kept_layers.index(layer) for layer in value if layer in kept_layers]
        elif isinstance(value, (list, tuple)) and len(value) == n_layers:
            changed[name] = [value[layer] for layer in kept_layers]
        elif isinstance(value, str) and name.endswith("_pattern") and len(value) == n_layers:  # a letter for each layer
            changed[name] = "".join(value[layer] for layer in kept_layers)
        elif name == "block_types" and value:  # a list that is repeated; it becomes one with a value for each layer
            changed[name] = [value[layer % len(value)] for layer in kept_layers]
        elif name in _LEADING_COUNTS and isinstance(value, int):
            changed[name] = sum(layer < value for layer in kept_layers)
        elif name == "moe_layer_end_index" and isinstance(value, int) and value >= 0:
            # The last layer that is different.
            changed[name] = sum(layer <= value for layer in kept_layers) - 1
        elif name == "scale_depth" and value is not None:  # the scale of residuals times the square root of the depth
            changed[name] = value * math.sqrt(len(kept_layers) / n_layers)
        elif name in _FROM_ONE and isinstance(value, dict):
            numbers = {key: _renumbered_from_one(value[key], kept_layers) for key in _FROM_ONE[name]}
            changed[name] = value | numbers
    return changed


def _renumbered_from_one(numbers: Sequence[int], kept_layers: Sequence[int]) -> list[int]:
    """Return the new numbers of the kept layers among these; all numbers start at 1."""
    return [kept_layers.index(number - 1) + 1 for number in numbers if number - 1 in kept_layers]


def _are_indices(name: str, value: Sequence[Any], n_layers: int) -> bool:
    """Return whether a list contains layer indices, as ``mlp_only_layers=[0, 2]``, and not a value for each layer."""
    ascending = all(type(item) is int and 0 <= item < n_layers for item in value) and list(value) == sorted(set(value))
    complete = len(value) < n_layers or list(value) == list(range(n_layers))
    return ascending and complete and ("layer" in name or "idx" in name or "indices" in name)
