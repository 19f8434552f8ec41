"""Deletes layers from a model in memory, for an ordinary, shallower checkpoint.

The config must describe the kept layers too, since a reloaded model is built from it: their number, and every value
that is given for each layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from raysearch.checkpoints.config_rules import shrink_config
from raysearch.checkpoints.kept_blocks import KeptBlocks
from raysearch.core.mask import Mask
from raysearch.models.stack import LayerStack

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
    assert not mask.halves, "only whole layers"
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
    shrink_config(text, KeptBlocks.whole(kept_layers, n_layers))
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
