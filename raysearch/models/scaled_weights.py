"""Folds the scales of a mask into the weights of the layers that stay, so that a checkpoint holds them.

A half adds f(h) to the state, and f is the same for a state of another size, since it begins with a norm. So the state
can keep its size if everything that is added after a cut is smaller by the factor of the cut instead:

    c h + f(c h) = c (h + f(h) / c)            the final norm removes the c that is left

The output weights of each half after a cut are divided by the factors of all cuts before it. This is exact but for the
eps of the norms and the rounding of the weights.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from raysearch.checkpoints.checkpoint import Checkpoint
from raysearch.core.mask import PARTS, Half, Mask
from raysearch.core.scale import Scale, factors_of
from raysearch.errors import UnsupportedModelError
from raysearch.models.changed_values import with_values_of
from raysearch.models.loading import load_model
from raysearch.models.output_weights import find_output_weights
from raysearch.models.spec import LocatedModel
from raysearch.models.stack import LayerStack
from raysearch.models.verification import verify_scales


def fold_scales(stack: LayerStack, mask: Mask, scales: Iterable[Scale]) -> list[str]:
    """Divide the output weights of each half after a cut by the factors of all cuts before it.

    Args:
        stack: The layers of the dense model, whose weights are replaced.
        mask: The removed layers.
        scales: The factors of the cuts of the mask.

    Returns:
        The names of the changed parameters in the model, in the order of its layers.

    Raises:
        UnsupportedModelError: A half has no weights that what it adds is proportional to.
    """
    factors = factors_of(scales)
    names = {layer: name for name, layer in stack.model.named_modules()}
    captured, state = stack.random_state()
    changed = []
    product = 1.0
    for layer in stack.sites.kept_layers(mask):
        product *= factors.get(layer, 1.0)
        if product == 1.0:
            continue
        module = stack.layers[layer]
        for half in (Half(layer, part) for part in PARTS):
            weights = find_output_weights(stack, half, state, captured)
            for name, values in weights.scaled(dict(module.named_parameters()), 1 / product).items():
                owner, _, attribute = name.rpartition(".")
                setattr(module.get_submodule(owner), attribute, nn.Parameter(values, requires_grad=False))
                changed.append(f"{names[module]}.{name}")
    return changed


@torch.no_grad()
def with_folded_scales(
    model: LocatedModel, source: Path, mask: Mask, scales: Iterable[Scale], scratch: Path
) -> Checkpoint:
    """Return the dense model's checkpoint with the scales of a mask in the weights of the layers that stay.

    Args:
        model: The dense model.
        source: The folder of its files.
        mask: The removed layers.
        scales: The factors of the cuts of the mask.
        scratch: A new folder for the changed tensors. It must exist until the checkpoint is written.

    Returns:
        The checkpoint, whose changed tensors lie in `scratch`.

    Raises:
        UserError: The model cannot be loaded.
        UnsupportedModelError: No weights of the model can hold the factors, or its files cannot hold the new values.
    """
    stack = LayerStack(load_model(model if model.digest is not None else replace(model, dtype="auto")))  # as in files
    verify_scales(stack)
    scratch.mkdir()
    try:
        changed = fold_scales(stack, mask, scales)
        return with_values_of(stack.model, changed, Checkpoint.open(source), stack.sites.n_layers, scratch)
    except UnsupportedModelError as error:
        reason = str(error).partition("; use ")[0]  # without a remedy that is for other commands
        raise UnsupportedModelError(
            f"model={model.name} cannot be exported with repair=scale: {reason}; search with repair=none"
        ) from error
