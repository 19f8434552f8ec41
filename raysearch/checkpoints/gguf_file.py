"""Reads and writes GGUF files, tensor by tensor, in their quantisation. Needs neither torch nor transformers.

Source: the GGUF specification.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raysearch.checkpoints.gguf_halves import parts_of_tensors
from raysearch.checkpoints.gguf_parts import parts_of
from raysearch.checkpoints.gguf_reader import reader_class
from raysearch.checkpoints.kept_blocks import KeptBlocks
from raysearch.checkpoints.periods import Values, family_of
from raysearch.core.mask import Part
from raysearch.errors import UserError
from raysearch.text.sentences import what_failed

#: The name of a block's tensor: the block's index, and the name within the block.
BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
#: The key of the number of blocks that predict further tokens.
PREDICTING = "nextn_predict_layers"
#: A remedy for files that are refused.
CHECKPOINT = "a checkpoint (--out) with transformers or vLLM"


@dataclass(frozen=True)
class GGUFFile:
    """An open GGUF file.

    Args:
        parts: The parts of the file, of which the first has the metadata; only the file itself if it is whole.
        reader: The reader of the whole file.
        architecture: The name of the architecture in llama.cpp.
    """

    parts: tuple[Path, ...]
    reader: Any
    architecture: str

    @property
    def path(self) -> Path:
        """The file, or its first part."""
        return self.parts[0]

    @property
    def size_bytes(self) -> int:
        """The size of all parts."""
        return sum(part.stat().st_size for part in self.parts)

    def get(self, key: str) -> Any:
        """Return the architecture's value of a key; None if there is none."""
        stored = self.reader.fields.get(f"{self.architecture}.{key}")
        return None if stored is None else stored.contents()

    @property
    def values(self) -> Values:
        """What the metadata says of the layers."""
        return Values(family_of(self.architecture), lambda key: self.get(key.gguf or ""), is_gguf=True)

    @property
    def blocks(self) -> int:
        """The number of blocks, including those that predict further tokens."""
        return int(self.get("block_count") or 0)

    @property
    def parts_of_tensors(self) -> dict[str, Part]:
        """The halves of tensors, by their names within a block; without those whose half is unknown."""
        matches = (BLOCK.fullmatch(tensor.name) for tensor in self.reader.tensors)
        return parts_of_tensors({match[2] for match in matches if match is not None})

    @property
    def layers(self) -> int:
        """The number of layers: blocks without those that predict further tokens."""
        return self.blocks - int(self.get(PREDICTING) or 0)

    def refused(self, reason: str, remedy: str = f"use {CHECKPOINT}") -> UserError:
        """Return an error that refuses the file.

        Args:
            reason: The reason.
            remedy: What the user can do.

        Returns:
            The error, which the caller raises.
        """
        return UserError(f"{self.path} cannot be pruned: {reason}; {remedy}")


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a GGUF file, in its quantisation.

    Args:
        kind: The quantisation of its values, of gguf's `GGMLQuantizationType`.
        shape: The shape of the stored array, which has bytes if the values are quantised.
        dtype: The dtype of the stored array.
        n_bytes: The size of the stored array.
        read: Returns the stored array.
    """

    kind: Any
    shape: tuple[int, ...]
    dtype: Any
    n_bytes: int
    read: Callable[[], Any]

    @classmethod
    def of(cls, tensor: Any) -> StoredTensor:
        """Return the tensor for one of gguf's reader."""
        data = tensor.data
        return cls(tensor.tensor_type, data.shape, data.dtype, data.nbytes, lambda: data)

    @classmethod
    def of_values(cls, values: Any) -> StoredTensor:
        """Return the tensor for an array of float32."""
        import gguf

        return cls(gguf.GGMLQuantizationType.F32, values.shape, values.dtype, values.nbytes, lambda: values)


@dataclass
class ChangedMetadata:
    """The changes of a file's metadata, by whole key.

    Args:
        changed: The new values.
        dropped: The keys whose old value, with its type, is not written. They may have a new value.
        build: The first build of llama.cpp that reads the new metadata; None if every build does.
        architecture: The architecture of the new file, whose name the keys then begin with; None for that of the file.
    """

    changed: dict[str, Any] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)
    build: int | None = None
    architecture: str | None = None


@dataclass(frozen=True)
class PrunedFile:
    """What a pruned GGUF file contains.

    Args:
        kept: Its layers, each with the layers of the dense model that its halves come from.
        metadata: The changes of the metadata.
        tensors: Its tensors, each after its name.
        changes: What else differs from the dense model's file, in sentences.
    """

    kept: KeptBlocks
    metadata: ChangedMetadata
    tensors: Sequence[tuple[str, StoredTensor]]
    changes: tuple[str, ...] = ()


def read_gguf(path: Path) -> GGUFFile:
    """Open a GGUF file.

    Args:
        path: The file, or any of its parts.

    Raises:
        UserError: There is no such file, it cannot be read, or one of its parts is missing.
    """
    parts = parts_of(path)
    if not parts[0].is_file():
        raise UserError(f"--from={path} is not a GGUF file; check the path")
    try:
        reader = reader_class()(parts[0])
        return GGUFFile(tuple(parts), reader, str(reader.fields["general.architecture"].contents()))
    except (ValueError, KeyError, IndexError, UnicodeDecodeError, OSError) as error:
        raise UserError(f"{parts[0]} cannot be read as GGUF ({what_failed(error)}); complete the download") from error


def write_gguf(
    file: GGUFFile, out: Path, metadata: ChangedMetadata, tensors: Sequence[tuple[str, StoredTensor]]
) -> None:
    """Write one GGUF file, with one tensor in memory at a time.

    Args:
        file: The file whose metadata is written.
        out: The file to write.
        metadata: The changes of the metadata.
        tensors: The tensors by name.

    Raises:
        OSError: The file cannot be written.
    """
    import gguf

    kinds = gguf.GGUFValueType
    reader = file.reader
    changed = metadata.changed
    architecture = metadata.architecture or file.architecture
    writer = gguf.GGUFWriter(out, architecture)
    writer.data_alignment = reader.alignment

    def new_key(name: str) -> str:
        key = name.removeprefix(f"{file.architecture}.")
        return name if key == name else f"{architecture}.{key}"

    for name, stored in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture" or name in metadata.dropped:
            continue
        kind, *item_kinds = stored.types
        value = changed[name] if name in changed else _raw(stored, kinds)
        if kind is not kinds.ARRAY or value:  # gguf's writer cannot write an empty list
            writer.add_key_value(new_key(name), value, kind, item_kinds[0] if item_kinds else None)
    for name in sorted(changed.keys() - (reader.fields.keys() - metadata.dropped)):
        value = changed[name]
        if isinstance(value, str):
            writer.add_string(new_key(name), value)
        elif isinstance(value, int):
            writer.add_uint32(new_key(name), value)
        elif value:
            kind = kinds.BOOL if isinstance(value[0], bool) else kinds.UINT32
            writer.add_key_value(new_key(name), value, kinds.ARRAY, kind)
    for name, tensor in tensors:
        writer.add_tensor_info(name, tensor.shape, tensor.dtype, tensor.n_bytes, tensor.kind)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        assert writer.fout, "its header is written"
        parts = [writer.fout[0].tell(), *(tensor.n_bytes for _, tensor in tensors)]
        for _, tensor in tensors:
            writer.write_tensor_data(tensor.read())
    finally:
        writer.close()
    if out.stat().st_size != sum(writer.ggml_pad(part, reader.alignment) for part in parts):
        raise OSError("its size is not that of its tensors")


def _raw(stored: Any, kinds: Any) -> Any:
    """Return a stored value; its strings are bytes, since they need not be UTF-8."""
    if stored.types[-1] is not kinds.STRING:
        return stored.contents()
    texts = [stored.parts[part].tobytes() for part in stored.data]
    return texts if stored.types[0] is kinds.ARRAY else texts[0]


def renumbered(file: GGUFFile, kept: KeptBlocks) -> list[tuple[str, StoredTensor]]:
    """Return the kept tensors of a file, in order, each after its new name.

    Args:
        file: The file.
        kept: The layers of the pruned model.

    Returns:
        The new name of each kept tensor, and the tensor.

    Raises:
        UnsupportedModelError: The halves of a layer do not stay together, and the half of one of its tensors is
            unknown.
    """
    tensors = []
    for tensor in file.reader.tensors:
        stored = StoredTensor.of(tensor)
        match = BLOCK.fullmatch(tensor.name)
        if match is None:
            tensors.append((tensor.name, stored))
        elif (place := kept.number_of(int(match[1]), match[2])) is not None:
            tensors.append((f"blk.{place}.{match[2]}", stored))
    return tensors


def interleaved_heads(rows: Any, n_heads: int) -> Any:
    """Return the rows of each head in turn: one of its first half, one of its second half.

    So a head that rotates values half a head apart becomes one that rotates neighbouring values.

    Args:
        rows: An array, [n_heads * width, ...].
        n_heads: The number of heads.

    Returns:
        The array with its rows in another order.

    Source:
        `permute` in llama.cpp's converter for Llama.
    """
    halves = rows.reshape(n_heads, 2, rows.shape[0] // n_heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)
