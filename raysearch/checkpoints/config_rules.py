"""The rules by which a config changes when layers are removed.

A config has values that depend on layers: their number, lists with a value for each layer, lists of layer numbers, and
counts of leading layers. A rule that follows from a layer's place alone, such as a period, is rewritten as a list where
the model reads one. The rules hold for values in memory and in a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from raysearch.checkpoints.kept_blocks import KeptBlocks
from raysearch.checkpoints.layer_rules import PERIODS, KeptLayers, Kind, config_rule, cut_for_blocks
from raysearch.checkpoints.periods import ListForm, Period, Values, list_instead, periods_of
from raysearch.core.site import Block

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
#: The key, in the config of the part for images, of a list with an entry for each of the first layers, to whose output
#: features of images are added.
_DEEPSTACK = "deepstack_visual_indexes"
#: Lists of layers to whose inputs features of images are added: numbers, or pairs with a layer of the vision tower.
_IMAGE_LAYERS = ("deepstack_layer_map", "spatial_target_layers")


def cut_values(values: Mapping[str, Any], kept: KeptBlocks, n_predicting: int = 0) -> dict[str, Any]:
    """Return the new values of a config's settings that depend on its layers, except the number of layers.

    Args:
        values: The values of a config, in memory or in a file, by name.
        kept: The layers of the pruned model.
        n_predicting: The layers after those of the dense model, which predict further tokens and stay.

    Returns:
        The changed values by name.

    Raises:
        UnsupportedModelError: It is not known which half of a layer a value describes, and it matters.
    """
    layers = KeptLayers((), kept.n_layers, n_predicting)
    changed: dict[str, Any] = {}
    for name, value in values.items():
        rule = config_rule(name, value, layers)
        if rule is not None and rule.kind is not Kind.STAYS:
            changed[name] = cut_for_blocks(name, rule.kind, value, kept, n_predicting)
    for period in _periods(values):
        as_list = period.rule.as_list
        if as_list is None:  # `changed_period` names it
            continue
        kept_layers = kept.layers_of(period.rule.part)
        listed = list_instead(period, values.get(str(as_list.key.config)), kept_layers, kept.n_layers)
        if listed is not None:
            changed[str(as_list.key.config)] = listed
            if as_list.form is ListForm.EXCEPTIONS and period.rule.key is not None:
                changed[str(period.rule.key.config)] = 1
    return changed


def cut_config(config: Mapping[str, Any], kept: KeptBlocks, n_predicting: int = 0) -> dict[str, Any]:
    """Return a file's config for the kept layers.

    The parts that describe the decoder change: the whole config, or a part of it, such as ``text_config``. A
    multimodal model may repeat some values of that part outside of it.

    Args:
        config: The content of ``config.json``, or a part of it.
        kept: The layers of the pruned model.
        n_predicting: The layers after those of the dense model, which predict further tokens and stay.

    Returns:
        The changed config.

    Raises:
        UnsupportedModelError: It is not known which half of a layer a value describes, and it matters.
    """
    # What is given by layer is added by `config_file` if transformers would read other values.
    config = {name: value for name, value in config.items() if name != "per_layer_config"}
    parts = {
        name: cut_config(config[name], kept, n_predicting) for name in TEXT_PARTS if isinstance(config.get(name), dict)
    }
    cut = {**config, **parts, **cut_image_layers(config, kept)}
    depths = [name for name in DEPTHS if config.get(name) == kept.n_layers]
    if depths or not parts:
        changed = cut_values(config, kept, n_predicting)
        repeated = {name for part in parts.values() for name in part}
        cut |= {name: value for name, value in changed.items() if not parts or name in repeated}
        cut |= dict.fromkeys(depths, len(kept))
    return cut


def image_layers(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the layers at whose places a model adds features of images to the hidden states, ascending."""
    vision = config.get("vision_config")
    first_layers = range(len(vision.get(_DEEPSTACK) or ()) if isinstance(vision, dict) else 0)
    listed = [item for name in _IMAGE_LAYERS for item in config.get(name) or ()]
    return tuple(sorted({*first_layers, *map(_image_layer, listed)}))


def cut_image_layers(values: Mapping[str, Any], kept: KeptBlocks) -> dict[str, Any]:
    """Return the new lists of layers at whose places features of images are added, by their names.

    Args:
        values: The values of a whole config by name.
        kept: The layers of the pruned model, with all layers of the lists as they are.

    Returns:
        The changed values by name.
    """
    changed: dict[str, Any] = {}
    for name in _IMAGE_LAYERS:
        if items := values.get(name):
            places = [kept.blocks.index(Block(_image_layer(item), _image_layer(item))) for item in items]
            changed[name] = [
                place if isinstance(item, int) else [*item[:-1], place]
                for item, place in zip(items, places, strict=True)
            ]
    return changed


def _image_layer(item: int | Sequence[int]) -> int:
    """Return the layer of the decoder that an item of such a list names."""
    return item if isinstance(item, int) else item[-1]


def changed_period(config: Mapping[str, Any], kept: KeptBlocks) -> Period | None:
    """Return a period that no config can describe for the kept layers.

    Args:
        config: The content of ``config.json``.
        kept: The layers of the pruned model.

    Returns:
        The period; None if there is none.
    """
    for name in TEXT_PARTS:
        if isinstance(part := config.get(name), dict) and (period := changed_period(part, kept)):
            return period
    for period in _periods(config):
        kept_layers = kept.layers_of(period.rule.part)
        if period.rule.as_list is None and period.changes(kept_layers, kept.n_layers):
            return period
    return None


def shrink_config(config: PreTrainedConfig, kept: KeptBlocks) -> None:
    """Rewrite the (text) config of a dense model for the kept layers, in place.

    Lists with a value for each layer are cut, lists and keys of layer indices are renumbered, and numbers of leading
    layers are counted again. A period that no list replaces stays, see `changed_period`; the export's verification
    detects further rules of place.

    Args:
        config: The config.
        kept: The layers of the pruned model.

    Raises:
        UnsupportedModelError: It is not known which half of a layer a value describes, and it matters.
    """
    by_layer = config.to_dict().get("per_layer_config") if getattr(config, "is_heterogeneous", False) else None
    if by_layer is not None:
        config.per_layer_config = None  # its keys are the places in the dense model
    changed = cut_values(vars(config), kept)
    # The depth is set last, since a config may derive other values from it. xLSTM has it under two names.
    depth = {name: len(kept) for name, number in depths(config).items() if number == kept.n_layers}
    for name, value in (changed | depth).items():
        setattr(config, name, value)
    if by_layer is not None:
        by_place = cut_for_blocks("per_layer_config", Kind.BY_NUMBER, by_layer, kept)
        config.per_layer_config = {int(place): values for place, values in by_place.items()}


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


def _periods(values: Mapping[str, Any]) -> list[Period]:
    """Return the periods of a config that transformers reads."""
    return periods_of(PERIODS, Values.of_config(values))
