"""Writes what a training or an adapter has changed in memory in the form of the model's own files."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from raysearch.checkpoints.changed_values import names_in_files, with_values
from raysearch.checkpoints.checkpoint import Checkpoint
from raysearch.checkpoints.quiet import quiet
from raysearch.checkpoints.safetensors_file import FileTensor, read_header

#: The dtypes of weights that are not quantised, by their names in safetensors files.
_PLAIN = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def with_values_of(
    model: PreTrainedModel, parameters: Collection[str], source: Checkpoint, n_layers: int, scratch: Path
) -> Checkpoint:
    """Return a checkpoint with the values that some parameters have in memory; all other tensors stay as they are.

    transformers writes these parameters, so it decides their names and how they are divided. They get the dtype that
    they have in the checkpoint, unless that would round them.

    Args:
        model: The model in memory, which was loaded from the checkpoint.
        parameters: The names in memory of the parameters that may have changed.
        source: The checkpoint.
        n_layers: N, its layers.
        scratch: An empty folder for the values. It must exist until the checkpoint is written.

    Returns:
        The checkpoint, whose changed tensors lie in `scratch`.

    Raises:
        UnsupportedModelError: The checkpoint has not exactly these tensors, since it is quantised or divided otherwise.
    """
    if not parameters:
        return source
    values: dict[str, Any] = model.state_dict()
    changed = {name: values[name] for name in parameters}
    tensors = {tensor.name: tensor for tensor in source.tensors}
    for tied, original in getattr(model, "all_tied_weights_keys", {}).items():
        changed.pop(tied, None)
        if original in changed and any(name == tied or name.endswith(f".{tied}") for name in tensors):
            changed[tied] = changed[original].clone()  # transformers would write shared values once
    with quiet():
        model.save_pretrained(scratch, state_dict=changed)
    files = sorted(scratch.glob("*.safetensors"))
    saved_names = [tensor.name for file in files for tensor in read_header(file)[1]]
    names = names_in_files(saved_names, list(tensors), n_layers)
    saved: dict[str, FileTensor] = {}
    for file in files:
        _cast(file, {name: tensors[names[name]].dtype for name in saved_names if names[name] in tensors})
        saved |= {names[tensor.name]: tensor for tensor in read_header(file)[1]}
    return with_values(source, saved)


def _cast(file: Path, dtypes: Mapping[str, str]) -> None:
    """Give the tensors of a file other dtypes, by their names in safetensors files, where no value changes."""
    if all(tensor.dtype == dtypes.get(tensor.name, tensor.dtype) for tensor in read_header(file)[1]):
        return
    weights = load_file(file)
    for name, values in weights.items():
        dtype = _PLAIN.get(dtypes.get(name, ""))
        if dtype is not None and values.is_floating_point() and torch.equal(values.to(dtype).to(values.dtype), values):
            weights[name] = values.to(dtype)
    save_file(weights, file)
