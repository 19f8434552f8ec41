"""Tells by the name of a tensor in a checkpoint which half of its layer it belongs to."""

from __future__ import annotations

from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion

from raysearch.checkpoints.layer_names import LayerNames
from raysearch.core.mask import PARTS, Part
from raysearch.errors import UnsupportedModelError
from raysearch.models.loading import load_config, without_weights
from raysearch.models.model_halves import halves_of
from raysearch.models.spec import ModelInfo


def names_of_halves(info: ModelInfo) -> dict[str, Part]:
    """Return the half of each tensor of a layer, by its name within the layer, in files and in memory.

    A tensor that no half reads goes with the MLP.

    Raises:
        UnsupportedModelError: A layer has no halves, or a name belongs to different halves in different layers.
    """
    halves = halves_of(info)
    skeleton = without_weights(info.model, load_config(info.model))
    in_memory: dict[str, Tensor] = skeleton.state_dict()
    names = LayerNames.of(in_memory, info.sites.n_layers)
    part_of: dict[str, Part] = {}
    for part in PARTS:
        tensors = {}
        for name, tensor in in_memory.items():
            layer, within = names.split(name)
            if layer is not None and halves[layer].part_of.get(within, "mlp") == part:
                tensors[name] = tensor
        in_files = revert_weight_conversion(skeleton, tensors)
        for written in (tensors, in_files):
            names_of_part = LayerNames.of(written, info.sites.n_layers)
            for name in written:
                _, within = names_of_part.split(name)
                if part_of.setdefault(within, part) != part:
                    raise UnsupportedModelError(
                        f"{info.model.name} can lose whole layers only, since {within} belongs to the attention in one "
                        "layer and to the MLP in another; use space=layers"
                    )
    return part_of
