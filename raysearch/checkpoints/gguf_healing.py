"""Writes a trained checkpoint as a GGUF file: the pruned file plus the training's changes of its weights.

Converters store the values of a tensor in several layouts. The layout of a tensor is the one for which the untrained
weights are those of the file. A tensor that was not trained keeps its bytes. torch is not imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from raysearch.checkpoints.gguf_file import GGUFFile, StoredTensor, interleaved_heads, renumbered
from raysearch.checkpoints.gguf_pruning import GGUFExport, ModelSizes, prune_gguf
from raysearch.checkpoints.kept_blocks import KeptBlocks
from raysearch.checkpoints.safetensors_file import FileTensor, read_header
from raysearch.core.mask import Mask

#: Quantisations that are exact enough for the changes of a training. In fewer bits, a small change of a weight would be
#: rounded away.
_FINE = ("F32", "F16", "BF16", "Q8_0")
#: The dtypes of a checkpoint that are read as numbers, besides BF16.
_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
_ROUNDED = 2**-7  # the largest difference between a 16-bit checkpoint and its file, relative to the largest value

Values = npt.NDArray[np.float32]


@dataclass(frozen=True)
class HealedGGUF:
    """A GGUF file of a trained model.

    Args:
        file: The file, and the one that was pruned.
        changed: The names of the tensors that the recovery has changed.
        coarser: The quantisations of the source that were replaced by Q8_0, since they would round most changes away.
        command: A command of llama.cpp that quantises the file like its source; None if that is not needed, or if the
            source does not name its quantisation.
    """

    file: GGUFExport
    changed: tuple[str, ...]
    coarser: tuple[str, ...]
    command: str | None


def heal_gguf(
    source: Path,
    mask: Mask,
    out: Path,
    *,
    pruned: Path,
    healed: Path,
    sizes: ModelSizes,
    search_id: str,
    overwrite: bool,
) -> HealedGGUF:
    """Write a GGUF file without the mask's layers, with the weights of a trained checkpoint.

    Args:
        source: A GGUF file of the dense model.
        mask: The layers to remove.
        out: The file to write.
        pruned: The checkpoint without these layers, before the training.
        healed: The checkpoint after the training.
        sizes: The sizes of the dense model.
        search_id: The search, for the file's metadata.
        overwrite: Whether to replace an existing file.

    Returns:
        The written file.

    Raises:
        UserError: As `prune_gguf`; or a trained weight is not in the file, or has an unknown layout there.
    """
    change = _Training(_Checkpoint(pruned), _Checkpoint(healed))
    file = prune_gguf(source, mask, out, sizes=sizes, search_id=search_id, overwrite=overwrite, change=change)
    coarser = tuple(sorted(change.coarser))
    command = None
    if coarser and (kind := _file_type(file.source)) is not None:
        command = f"llama-quantize --allow-requantize {out} {out.with_stem(f'{out.stem}-{kind}')} {kind}"
    return HealedGGUF(file, tuple(change.changed), coarser, command)


def _file_type(path: Path) -> str | None:
    """Return llama-quantize's name of a file's quantisation; None if the file does not name it."""
    import gguf

    stored = gguf.GGUFReader(path).fields.get("general.file_type")
    return None if stored is None else gguf.LlamaFileType(stored.contents()).name.removeprefix("MOSTLY_")


@dataclass(frozen=True)
class _Checkpoint:
    """The tensors of a folder of safetensors, read one by one."""

    folder: Path

    @cached_property
    def tensors(self) -> dict[str, FileTensor]:
        """The tensors by name."""
        files = sorted(self.folder.glob("*.safetensors"))
        return {tensor.name: tensor for file in files for tensor in read_header(file)[1]}

    def read(self, name: str) -> Values:
        """Return a tensor in float32; the bytes of a dtype of quantised weights."""
        tensor = self.tensors[name]
        content = b"".join(tensor.chunks())
        if tensor.dtype == "BF16":  # the upper half of a float32
            return (np.frombuffer(content, "<u2").astype(np.uint32) << 16).view(np.float32).reshape(tensor.shape)
        if tensor.dtype in _DTYPES:
            return np.frombuffer(content, _DTYPES[tensor.dtype]).astype(np.float32).reshape(tensor.shape)
        return np.frombuffer(content, np.uint8).astype(np.float32)


@dataclass
class _Training:
    """Adds a training's changes to the tensors of a pruned GGUF file."""

    pruned: _Checkpoint
    healed: _Checkpoint
    changed: list[str] = field(default_factory=list)  #: as in `HealedGGUF`
    coarser: set[str] = field(default_factory=set)  #: as in `HealedGGUF`
    names: dict[str, str] = field(default_factory=dict)  #: the checkpoint's names of weights by the file's names

    def __call__(self, file: GGUFFile, kept: KeptBlocks, name: str, tensor: StoredTensor) -> StoredTensor:
        """Return a tensor with the training's change; the same tensor if it was not trained."""
        import gguf

        if not self.names:
            self.names = self._names(file, kept)
        weight_name = self.names.get(name)
        if weight_name is None:
            return tensor
        before = self.pruned.read(weight_name)
        after = self.healed.read(weight_name)
        if np.array_equal(before, after):
            return tensor
        self.changed.append(name)
        stored = gguf.quants.dequantize(tensor.read(), tensor.kind)
        rearrange = _layout(file, stored, before)
        if rearrange is None:
            raise file.refused(f"how {name} holds {weight_name} is unknown", "use the recovered checkpoint")
        kind = tensor.kind if tensor.kind.name in _FINE else gguf.GGMLQuantizationType.Q8_0
        if kind != tensor.kind:
            self.coarser.add(tensor.kind.name)
        shape = gguf.quant_shape_to_byte_shape(stored.shape, kind) if _is_bytes(kind) else stored.shape
        dtype = np.dtype({"F32": np.float32, "F16": np.float16}.get(kind.name, np.uint8))

        def read() -> Any:
            change = rearrange(self.healed.read(weight_name) - self.pruned.read(weight_name))
            return gguf.quants.quantize(gguf.quants.dequantize(tensor.read(), tensor.kind) + change, kind)

        return StoredTensor(kind, tuple(shape), dtype, int(np.prod(shape)) * dtype.itemsize, read)

    def _names(self, file: GGUFFile, kept: KeptBlocks) -> dict[str, str]:
        """Return the checkpoint's names by those of the pruned file; refuse a trained weight that the file lacks."""
        import gguf

        architectures = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}
        table = gguf.get_tensor_name_map(architectures[file.architecture], len(kept) + file.blocks - kept.n_layers)
        tensor_names = {name for name, _ in renumbered(file, kept)}
        names = {}
        for weight_name in self.healed.tensors:
            name = table.get_name(weight_name, try_suffixes=(".weight", ".bias"))
            if name in tensor_names:
                names[name] = weight_name
            elif not np.array_equal(self.pruned.read(weight_name), self.healed.read(weight_name)):
                raise file.refused(f"it has no tensor for the trained {weight_name}", "use the recovered checkpoint")
        return names


def _is_bytes(kind: Any) -> bool:
    return kind.name not in ("F32", "F16")


def _layout(file: GGUFFile, stored: Values, values: Values) -> Callable[[Values], Values] | None:
    """Return the function from a checkpoint's values to the file's layout; None if the layout is unknown.

    Stored values may differ by a constant (norms are stored as 1 + w), since the training does not change it.
    """
    tolerance = _ROUNDED * float(np.abs(stored).max())
    for rearrange in _layouts(file, stored.shape):
        try:
            gap = stored - rearrange(values)
        except ValueError:  # the shapes differ
            continue
        if float(np.abs(gap - np.round(gap.mean())).max()) <= tolerance:
            return rearrange
    return None


def _layouts(file: GGUFFile, shape: tuple[int, ...]) -> Iterator[Callable[[Values], Values]]:
    """Yield the layouts of converters: unchanged, transposed, or the two halves of each head interleaved."""
    yield lambda values: values.reshape(shape)
    yield lambda values: values.T.reshape(shape)
    for key in ("attention.head_count", "attention.head_count_kv"):
        value = file.get(key)
        if value is None:
            continue
        head_counts = {*value} if isinstance(value, list) else {value}
        for n_heads in sorted(head_counts):
            yield partial(interleaved_heads, n_heads=int(n_heads))
