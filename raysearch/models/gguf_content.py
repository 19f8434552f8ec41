"""Reads the metadata of a GGUF file that describes its model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raysearch.checkpoints.gguf_reader import reader_class
from raysearch.errors import UnsupportedModelError

#: The architectures that are read. A test compares each with its checkpoint.
ARCHITECTURES = (
    "llama",
    "qwen2",
    "qwen2moe",
    "qwen3",
    "qwen3moe",
    "gemma2",
    "gemma3",
    "phi3",
    "falcon",
    "gpt2",
    "starcoder2",
    "stablelm",
    "nemotron",
    "lfm2",
    "mamba",
    "bloom",
    "qwen35",
    "qwen35moe",
    "minimax-m2",
)
#: The names of tensors with divisors of rotary frequencies.
FREQUENCIES = "rope_freqs.weight"
LONG_FACTORS = "rope_factors_long.weight"
SHORT_FACTORS = "rope_factors_short.weight"


@dataclass(frozen=True)
class GGUFContent:
    """The metadata of a GGUF file that describes its model.

    Args:
        name: The model's name, for messages.
        file: The file's name.
        architecture: The name of the architecture in llama.cpp: ``llama``.
        values: The values under the architecture's prefix, by key without the prefix.
        tensors: The names of all tensors.
        factors: The divisors of rotary frequencies, by the tensor's name.
    """

    name: str
    file: str
    architecture: str
    values: Mapping[str, Any]
    tensors: frozenset[str]
    factors: Mapping[str, NDArray[np.float32]]

    def refused(self, reason: str) -> UnsupportedModelError:
        """Return an error that refuses to search the file, and names alternatives."""
        return UnsupportedModelError(
            f"model={self.name} ({self.file}) cannot be searched: {reason}; search the model's folder or hub id, and "
            f"prune this file by: raysearch export SEARCH --gguf pruned.gguf --from {self.file}"
        )


def read_content(file: Path, name: str) -> GGUFContent:
    """Read the metadata of a GGUF file.

    Args:
        file: The file, or its first part.
        name: The model's name, for messages.

    Returns:
        The metadata, and the names of the tensors.

    Raises:
        UserError: A part of the file is missing.
        UnsupportedModelError: Files of this architecture are not read.
    """
    reader = reader_class()(file)
    fields = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("tokenizer.")}
    architecture = str(fields["general.architecture"])
    prefix = f"{architecture}."
    factors = {
        tensor.name: np.asarray(tensor.data, np.float32).ravel()
        for tensor in reader.tensors
        if tensor.name in (FREQUENCIES, LONG_FACTORS, SHORT_FACTORS)
    }
    content = GGUFContent(
        name=name,
        file=file.name,
        architecture=architecture,
        values={key.removeprefix(prefix): value for key, value in fields.items() if key.startswith(prefix)},
        tensors=frozenset(tensor.name for tensor in reader.tensors),
        factors=factors,
    )
    if architecture not in ARCHITECTURES:
        raise content.refused(f"raysearch reads no GGUF file of the architecture {architecture}")
    return content
