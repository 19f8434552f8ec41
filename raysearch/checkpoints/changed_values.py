"""Replaces the tensors of a checkpoint that a training or an adapter has changed; all others keep their bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from raysearch.checkpoints.checkpoint import Checkpoint
from raysearch.checkpoints.layer_names import LayerNames
from raysearch.checkpoints.safetensors_file import FileTensor
from raysearch.errors import UnsupportedModelError


def with_values(source: Checkpoint, values: Mapping[str, FileTensor]) -> Checkpoint:
    """Return a checkpoint with other values of some tensors.

    Args:
        source: The checkpoint.
        values: The tensors in other files, by the names that they have in the checkpoint.

    Returns:
        The checkpoint, whose tensors of these names lie in the other files.

    Raises:
        UnsupportedModelError: The checkpoint has no such tensor, or has it in another dtype or shape.
    """
    tensors = {tensor.name: tensor for tensor in source.tensors}
    for name, value in values.items():
        if name not in tensors:
            raise UnsupportedModelError(f"the checkpoint has no tensor {name}")
        tensor = tensors[name]
        if (value.dtype, value.shape) != (tensor.dtype, tensor.shape):
            raise UnsupportedModelError(
                f"the checkpoint has {name} as {tensor.dtype} {list(tensor.shape)}, not as {value.dtype} "
                f"{list(value.shape)}"
            )
    changed = [
        values[tensor.name].renamed(tensor.name) if tensor.name in values else tensor for tensor in source.tensors
    ]
    return replace(source, tensors=changed)


def names_in_files(saved_names: Iterable[str], names: Sequence[str], n_layers: int) -> dict[str, str]:
    """Return the names in a checkpoint by the names under which transformers saves the same tensors.

    They differ where transformers reads a part of a model: Llama 4 saves ``model.layers`` of
    ``language_model.model.layers``, and GPT-2 saves ``transformer.h`` of ``h``.

    Args:
        saved_names: The names under which transformers saves some tensors.
        names: The names of all tensors of the checkpoint.
        n_layers: N, the layers of the model.

    Returns:
        The name in the checkpoint for each saved name. It may not exist there.

    Raises:
        UnsupportedModelError: The checkpoint names its layers in a form that is unknown.
    """
    saved_names = list(saved_names)
    file_parts = LayerNames.of(names, n_layers).stack.split(".")
    numbered = re.compile(rf"((?:.*\.)?{re.escape(file_parts[-1])})\.\d+\.")
    stacks = {match[1] for name in saved_names if (match := numbered.match(name))}
    if len(stacks) != 1:  # no tensor of a layer
        return {name: name for name in saved_names}
    saved_parts = stacks.pop().split(".")
    while file_parts and saved_parts and file_parts[-1] == saved_parts[-1]:
        file_parts.pop()
        saved_parts.pop()
    prefix = "".join(f"{part}." for part in file_parts)
    saved_prefix = "".join(f"{part}." for part in saved_parts)
    existing = set(names)
    renamed = {name: prefix + name.removeprefix(saved_prefix) for name in saved_names}
    return {name: other if other in existing else name for name, other in renamed.items()}
