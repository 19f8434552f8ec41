"""A trained checkpoint as a GGUF file: the pruned file, with what the training has added to its weights.

How the values of a tensor lie in the file follows from the file itself: of the ways in which converters lay them out,
that one is taken by which the untrained weights are those of the file. A tensor that was not trained keeps its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from raysearch.core.mask import Mask
from raysearch.models.gguf_pruning import GGUFExport, GGUFFile, StoredTensor, prune_gguf, renumbered
from raysearch.models.spec import ModelInfo

#: What holds a training. In fewer bits a weight lies on a coarse grid, to which a small change of it is rounded back.
_FINE = ("F32", "F16", "BF16", "Q8_0")
_ROUNDED = 2**-7  # of the largest value: so far may a 16-bit checkpoint be from the file that it was read from

Values = npt.NDArray[np.float32]


@dataclass(frozen=True)
class HealedGGUF:
    """A GGUF file of a trained model.

    Args:
        file: The file, beside the one that was pruned.
        trained: How many of its tensors the training has changed.
        coarser: The quantisations of the source that would round most of a training away; Q8_0 is in their place.
        command: How llama.cpp quantises the file as its source is; None where it is.
    """

    file: GGUFExport
    trained: int
    coarser: tuple[str, ...]
    command: str | None


def heal_gguf(
    source: Path, mask: Mask, out: Path, *, pruned: Path, healed: Path, info: ModelInfo, search_id: str, overwrite: bool
) -> HealedGGUF:
    """Write a GGUF file without the mask's layers, with the weights of a trained checkpoint.

    Args:
        source: A GGUF file of the dense model.
        mask: The layers that go.
        out: The file to write.
        pruned: The checkpoint without these layers, as it was before the training.
        healed: The trained checkpoint.
        info: The dense model.
        search_id: For the file's metadata.
        overwrite: Whether a file that is there is replaced.

    Raises:
        UserError: As `prune_gguf`; or a trained weight is not found in the file, or lies there in an unknown way.
    """
    change = _Training(_Checkpoint(pruned), _Checkpoint(healed))
    file = prune_gguf(source, mask, out, info=info, search_id=search_id, overwrite=overwrite, change=change)
    coarser, command = tuple(sorted(change.coarser)), None
    if coarser and (kind := _file_type(source)) is not None:
        command = f"llama-quantize --allow-requantize {out} {out.with_stem(f'{out.stem}-{kind}')} {kind}"
    return HealedGGUF(file, change.trained, coarser, command)


def _file_type(path: Path) -> str | None:
    """Return what the quantiser calls the quantisation of a file; None where the file does not say."""
    import gguf

    stored = gguf.GGUFReader(path).fields.get("general.file_type")
    return None if stored is None else gguf.LlamaFileType(stored.contents()).name.removeprefix("MOSTLY_")


@dataclass(frozen=True)
class _Checkpoint:
    """The tensors of a folder of safetensors, read one by one."""

    folder: Path

    @cached_property
    def files(self) -> dict[str, Path]:
        """The file of each tensor."""
        from safetensors import safe_open

        files = dict[str, Path]()
        for file in sorted(self.folder.glob("*.safetensors")):
            with safe_open(file, "pt") as tensors:
                files |= dict.fromkeys(tensors.keys(), file)
        return files

    def read(self, name: str) -> Values:
        """Return a tensor in float32."""
        from safetensors import safe_open

        with safe_open(self.files[name], "pt") as tensors:
            values: Values = tensors.get_tensor(name).float().numpy()
        return values


@dataclass
class _Training:
    """Adds to the tensors of a pruned GGUF file what a training has changed."""

    pruned: _Checkpoint
    healed: _Checkpoint
    trained: int = 0
    coarser: set[str] = field(default_factory=set)
    names: dict[str, str] = field(default_factory=dict)  #: of the checkpoint, by those of the file

    def __call__(self, file: GGUFFile, kept: Sequence[int], name: str, tensor: StoredTensor) -> StoredTensor:
        """Return what is written of a tensor, which stays as it is where it was not trained."""
        import gguf

        if not self.names:
            self.names = self._names(file, kept)
        own = self.names.get(name)
        if own is None:
            return tensor
        before, after = self.pruned.read(own), self.healed.read(own)
        if np.array_equal(before, after):
            return tensor
        self.trained += 1
        stored = gguf.quants.dequantize(tensor.read(), tensor.kind)
        lay_out = _layout(file, kept, stored, before)
        if lay_out is None:
            raise file.refused(f"how {name} holds {own} is unknown", "use the recovered checkpoint")
        kind = tensor.kind if tensor.kind.name in _FINE else gguf.GGMLQuantizationType.Q8_0
        if kind != tensor.kind:
            self.coarser.add(tensor.kind.name)
        shape = gguf.quant_shape_to_byte_shape(stored.shape, kind) if _is_bytes(kind) else stored.shape
        dtype = np.dtype({"F32": np.float32, "F16": np.float16}.get(kind.name, np.uint8))

        def read() -> Any:
            change = lay_out(self.healed.read(own) - self.pruned.read(own))
            return gguf.quants.quantize(gguf.quants.dequantize(tensor.read(), tensor.kind) + change, kind)

        return StoredTensor(kind, tuple(shape), dtype, int(np.prod(shape)) * dtype.itemsize, read)

    def _names(self, file: GGUFFile, kept: Sequence[int]) -> dict[str, str]:
        """Return the checkpoint's name of each tensor of the pruned file; refuse a trained one that the file lacks."""
        import gguf

        architectures = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}
        table = gguf.get_tensor_name_map(architectures[file.architecture], len(kept))
        written = {name for name, _ in renumbered(file.reader, kept)}
        names = {}
        for own in self.healed.files:
            name = table.get_name(own, try_suffixes=(".weight", ".bias"))
            if name in written:
                names[name] = own
            elif not np.array_equal(self.pruned.read(own), self.healed.read(own)):
                raise file.refused(f"it has no tensor for the trained {own}", "use the recovered checkpoint")
        return names


def _is_bytes(kind: Any) -> bool:
    return kind.name not in ("F32", "F16")


def _layout(file: GGUFFile, kept: Sequence[int], stored: Values, values: Values) -> Callable[[Values], Values] | None:
    """Return how the values of a checkpoint lie in the file; None where that is in none of the known ways.

    A constant between the two, as of norms that are stored as 1 + w, is no matter: it was not trained.
    """
    tolerance = _ROUNDED * float(np.abs(stored).max())
    for lay_out in _layouts(file, stored.shape):
        try:
            gap = stored - lay_out(values)
        except ValueError:  # of another shape
            continue
        if float(np.abs(gap - np.round(gap.mean())).max()) <= tolerance:
            return lay_out
    return None


def _layouts(file: GGUFFile, shape: tuple[int, ...]) -> Iterator[Callable[[Values], Values]]:
    """Yield the ways in which converters lay tensors out: as they are, transposed, or heads with their halves woven."""
    yield lambda values: values.reshape(shape)
    yield lambda values: values.T.reshape(shape)
    for key in ("attention.head_count", "attention.head_count_kv"):
        heads = file.get(key)
        for n_heads in sorted({*heads} if isinstance(heads, list) else {heads} - {None}):
            yield partial(_woven, n_heads=int(n_heads))


def _woven(values: Values, n_heads: int) -> Values:
    """Return the rows of each head with the two halves in turn, as llama.cpp rotates them."""
    rows, *rest = values.shape
    return values.reshape(n_heads, 2, rows // n_heads // 2, *rest).swapaxes(1, 2).reshape(values.shape)
