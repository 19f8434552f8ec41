"""The rules by which a config changes when layers are removed.

A config has values that depend on layers: their number, lists with a value for each layer, lists of layer numbers, and
counts of leading layers. A rule that follows from a layer's place alone, such as a period, is rewritten as a list where
the model reads one. The rules hold for values in memory and in a file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from raysearch.checkpoints.layer_names import new_number

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

#: The names of settings that may hold a decoder's number of layers, in the order in which they are tried.
DEPTHS = (
    "num_hidden_layers",
    "decoder_layers",
    "num_decoder_layers",
    "num_layers",
    "n_layers",
    "n_layer",
    "num_blocks",
)
#: The names of the parts of a config that may describe the decoder.
TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config", "decoder")
#: Numbers k with the meaning "the first k layers are different"; k becomes the number of these that are kept.
_LEADING_COUNTS = ("first_k_dense_replace", "max_window_layers", "num_dense_layers", "moe_layer_start_index")
#: A list of layer numbers that start at 1.
_IDS_FROM_ONE = "ple_layer_ids"
#: Lists of layer numbers that start at 1, by the name of the dict that holds them.
_FROM_ONE = {"linear_attn_config": ("full_attn_layers", "kda_layers")}
#: A list with a value for each layer, which is the number of another layer.
_OTHER_LAYERS = "kv_source_layers"
#: The key, in the config of the part for images, of a list with an entry for each of the first layers, to whose output
#: features of images are added.
_DEEPSTACK = "deepstack_visual_indexes"
#: Lists of layers to whose inputs features of images are added: numbers, or pairs with a layer of the vision tower.
_IMAGE_LAYERS = ("deepstack_layer_map", "spatial_target_layers")
#: The end of the names of settings with a period, in layers, after which a layer is of another kind.
_PERIOD = "layer_period"
#: A period k, with the meaning "layers k-1, 2k-1, … have experts, except those of a list".
_SPARSE_STEP = "decoder_sparse_step"
_DENSE_LAYERS = "mlp_only_layers"


def cut_values(
    values: Mapping[str, Any], kept_layers: Sequence[int], n_layers: int, n_predicting: int = 0
) -> dict[str, Any]:
    """Return the new values of a config's settings that depend on its layers, except the number of layers.

    Args:
        values: The values of a config, in memory or in a file, by name.
        kept_layers: The indices of the kept layers in the dense model, ascending.
        n_layers: N, the layers of the dense model.
        n_predicting: The layers after these, which predict further tokens and stay.

    Returns:
        The changed values by name.
    """
    changed: dict[str, Any] = {}
    stay = [*kept_layers, *range(n_layers, n_layers + n_predicting)]
    for name, value in values.items():
        if name.startswith("_") or name.endswith(("token_id", "token_ids")):
            continue
        if name == _IDS_FROM_ONE and value:
            changed[name] = _renumbered_from_one(value, kept_layers)
        elif name == _OTHER_LAYERS and isinstance(value, (list, tuple)):
            changed[name] = [_renumbered_or_none(value[layer], kept_layers, n_layers) for layer in kept_layers]
        elif isinstance(value, (list, tuple)) and _are_indices(name, value, n_layers):
            changed[name] = [kept_layers.index(layer) for layer in value if layer in kept_layers]
        elif isinstance(value, (list, tuple)) and len(value) == n_layers:
            changed[name] = [value[layer] for layer in kept_layers]
        elif isinstance(value, (list, tuple)) and n_predicting and len(value) == n_layers + n_predicting:
            changed[name] = [value[layer] for layer in stay]
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
    step = values.get(_SPARSE_STEP)
    if isinstance(step, int) and step > 1 and len(kept_layers) < n_layers:
        listed = values.get(_DENSE_LAYERS) or ()
        dense = [layer for layer in range(n_layers) if layer in listed or (layer + 1) % step != 0]
        changed[_SPARSE_STEP] = 1
        changed[_DENSE_LAYERS] = [kept_layers.index(layer) for layer in dense if layer in kept_layers]
    return changed


def cut_config(
    config: Mapping[str, Any], kept_layers: Sequence[int], n_layers: int, n_predicting: int = 0
) -> dict[str, Any]:
    """Return a file's config for the kept layers.

    The parts that describe the decoder change: the whole config, or a part of it, such as ``text_config``. A
    multimodal model may repeat some values of that part outside of it.

    Args:
        config: The content of ``config.json``, or a part of it.
        kept_layers: The indices of the kept layers in the dense model, ascending.
        n_layers: N, the layers of the dense model.
        n_predicting: The layers after these, which predict further tokens and stay.

    Returns:
        The changed config.
    """
    parts = {
        name: cut_config(config[name], kept_layers, n_layers, n_predicting)
        for name in TEXT_PARTS
        if isinstance(config.get(name), dict)
    }
    # What is given by layer is added by `config_file`, since its keys are places.
    cut = {name: value for name, value in config.items() if name != "per_layer_config"} | parts
    cut |= cut_image_layers(config, kept_layers)
    depths = [name for name in DEPTHS if config.get(name) == n_layers]
    if depths or not parts:
        changed = cut_values(config, kept_layers, n_layers, n_predicting)
        repeated = {name for part in parts.values() for name in part}
        cut |= {name: value for name, value in changed.items() if not parts or name in repeated}
        cut |= dict.fromkeys(depths, len(kept_layers))
    return cut


def image_layers(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the layers at whose places a model adds features of images to the hidden states, ascending."""
    vision = config.get("vision_config")
    first_layers = range(len(vision.get(_DEEPSTACK) or ()) if isinstance(vision, dict) else 0)
    listed = [item for name in _IMAGE_LAYERS for item in config.get(name) or ()]
    return tuple(sorted({*first_layers, *map(_image_layer, listed)}))


def cut_image_layers(values: Mapping[str, Any], kept_layers: Sequence[int]) -> dict[str, Any]:
    """Return the new lists of layers at whose places features of images are added, by their names.

    Args:
        values: The values of a whole config by name.
        kept_layers: The indices of the kept layers in the dense model, ascending. All layers of the lists are among
            them.

    Returns:
        The changed values by name.
    """
    changed: dict[str, Any] = {}
    for name in _IMAGE_LAYERS:
        if items := values.get(name):
            places = [kept_layers.index(_image_layer(item)) for item in items]
            changed[name] = [
                place if isinstance(item, int) else [*item[:-1], place]
                for item, place in zip(items, places, strict=True)
            ]
    return changed


def _image_layer(item: int | Sequence[int]) -> int:
    """Return the layer of the decoder that an item of such a list names."""
    return item if isinstance(item, int) else item[-1]


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
            place: values_by_layer[layer] for place, layer in enumerate(kept_layers) if layer in values_by_layer
        }


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


def depth_names(config: PreTrainedConfig) -> list[str]:
    """Return the names of a config's settings that may hold the number of a decoder's layers.

    A name that means the number of an encoder's layers is left out.
    """
    return [name for name in DEPTHS if "encoder" not in config.attribute_map.get(name, name)]


def depths(config: PreTrainedConfig) -> dict[str, int]:
    """Return the possible numbers of a decoder's layers in a config, by the name of the setting."""
    return {name: value for name in depth_names(config) if type(value := getattr(config, name, None)) is int}


def _renumbered_from_one(numbers: Sequence[int], kept_layers: Sequence[int]) -> list[int]:
    """Return the new numbers of the kept layers among these; all numbers start at 1."""
    return [kept_layers.index(number - 1) + 1 for number in numbers if number - 1 in kept_layers]


def _renumbered_or_none(layer: int | None, kept_layers: Sequence[int], n_layers: int) -> int | None:
    """Return the new number of a layer; None if there is none, or if it is removed."""
    return None if layer is None else new_number(layer, kept_layers, n_layers)


def _are_indices(name: str, value: Sequence[Any], n_layers: int) -> bool:
    """Return whether a list contains layer indices, as ``mlp_only_layers=[0, 2]``, and not a value for each layer."""
    ascending = all(type(item) is int and 0 <= item < n_layers for item in value) and list(value) == sorted(set(value))
    complete = len(value) < n_layers or list(value) == list(range(n_layers))
    return ascending and complete and ("layer" in name or "idx" in name or "indices" in name)
