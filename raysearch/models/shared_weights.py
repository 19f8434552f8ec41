"""Separates a model's structure from its tensors, so that processes on one machine can share the tensors.

`detach` pickles the module tree with a number in place of every tensor, and returns the tensors as NumPy arrays over
the same memory. In Ray's object store the arrays are mapped, not copied, into every replica; `attach` rebuilds the
model around them, in what may be read-only memory: a mask skips layers and never writes into weights. Tied weights stay
tied, since a repeated tensor has one number.
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.dynamic_module_utils import init_hf_modules

from raysearch.models.reading import takes_images

#: NumPy has no bfloat16, so such tensors become integers of the same width.
_INTEGER_DTYPES = {torch.bfloat16: torch.int16}

#: A model's pickled structure, and its tensors as arrays.
Detached = tuple[bytes, list[npt.NDArray[Any]]]


def detach(model: PreTrainedModel) -> Detached:
    """Separate a CPU model into its pickled structure and its tensors, as arrays over the same memory.

    Args:
        model: A model on the CPU.

    Returns:
        The two arguments of `attach`.
    """
    stream = io.BytesIO()
    pickler = _Pickler(stream)
    pickler.dump(model)
    return stream.getvalue(), pickler.arrays


def attach(structure: bytes, arrays: Sequence[npt.NDArray[Any]]) -> PreTrainedModel:
    """Rebuild a model from the output of `detach`.

    Args:
        structure: The pickled structure.
        arrays: The tensors' values, whose memory the model uses.

    Returns:
        The model.
    """
    init_hf_modules()  # without it, pickle does not find a class of the code that came with the model
    model: PreTrainedModel = _Unpickler(io.BytesIO(structure), arrays).load()
    if takes_images(type(model)):
        # A tower returns the states of its inner layers only if this process has built a model of the tower's class.
        with torch.device("meta"):
            type(model)(model.config)
    return model


class _Pickler(pickle.Pickler):
    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, protocol=5)
        self.arrays: list[npt.NDArray[Any]] = []
        self._numbers: dict[torch.Tensor, int] = {}  # by identity, since that is a tensor's hash

    def persistent_id(self, value: object) -> tuple[int, torch.dtype, bool] | None:
        if not isinstance(value, torch.Tensor):
            return None
        if value not in self._numbers:
            self._numbers[value] = len(self.arrays)
            data = value.detach().contiguous()
            self.arrays.append(data.view(_INTEGER_DTYPES.get(data.dtype, data.dtype)).numpy())
        return self._numbers[value], value.dtype, isinstance(value, nn.Parameter)


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, arrays: Sequence[npt.NDArray[Any]]) -> None:
        super().__init__(stream)
        self._arrays = arrays
        self._tensors: dict[int, torch.Tensor] = {}

    def persistent_load(self, pid: Any) -> torch.Tensor:
        number, dtype, is_parameter = pid
        if number not in self._tensors:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
                tensor = torch.from_numpy(np.asarray(self._arrays[number])).view(dtype)
            self._tensors[number] = nn.Parameter(tensor, requires_grad=False) if is_parameter else tensor
        return self._tensors[number]
