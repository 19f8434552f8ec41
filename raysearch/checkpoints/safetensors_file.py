"""Reads the headers of safetensors files, and writes such files by copying tensors byte for byte.

The safetensors library reads tensors into an array type, and writes tensors that are all in memory. Here a tensor is a
range of bytes in a file, so any dtype is copied as it is, and one chunk is in memory at a time.

Source: the safetensors format, https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import BinaryIO

from raysearch.errors import UserError
from raysearch.text.sentences import what_failed

#: The bytes that are in memory at a time while a tensor is copied.
CHUNK_BYTES = 2**23
_MOST_SENT_BYTES = 2**30  # by one call of the operating system
_HEADER_BYTES = 8  # of the header's length
_MAX_HEADER_BYTES = 100_000_000  # the limit of the format
_ALIGNMENT = 8  # of the first tensor, in bytes
#: The bits of one value; a dtype that is not listed has the number in its name, as BF16.
_BITS = {"BOOL": 8, "C64": 64, "C128": 128}


@dataclass(frozen=True)
class FileTensor:
    """A tensor in a safetensors file.

    Args:
        name: The tensor's name.
        dtype: The name of the dtype in the format, such as ``BF16``.
        shape: The shape.
        file: The file.
        offset: The place of its first byte in the file.
        n_bytes: Its size in bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    n_bytes: int

    def chunks(self) -> Iterator[bytes]:
        """Yield the tensor's bytes in order, at most `CHUNK_BYTES` at a time.

        Raises:
            OSError: The file cannot be read, or ends too early.
        """
        with self.file.open("rb") as stream:
            stream.seek(self.offset)
            left = self.n_bytes
            while left:
                chunk = stream.read(min(left, CHUNK_BYTES))
                if not chunk:
                    raise OSError(f"{self.file.name} ends within {self.name}")
                left -= len(chunk)
                yield chunk

    def renamed(self, name: str) -> FileTensor:
        """Return the tensor under another name."""
        return replace(self, name=name)


@dataclass(frozen=True)
class SlicedTensor:
    """Some slices of a tensor along one axis.

    Args:
        source: The whole tensor.
        name: The new tensor's name.
        axis: The axis, 0 or 1.
        width: The length of a slice along the axis.
        kept_slices: The indices of the slices that stay, ascending.
    """

    source: FileTensor
    name: str
    axis: int
    width: int
    kept_slices: Sequence[int]

    @property
    def dtype(self) -> str:
        """The dtype of the tensor."""
        return self.source.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape with the kept slices only."""
        lengths = list(self.source.shape)
        lengths[self.axis] = self.width * len(self.kept_slices)
        return tuple(lengths)

    @property
    def n_bytes(self) -> int:
        """The size of the kept slices in bytes."""
        return self.source.n_bytes * prod(self.shape) // prod(self.source.shape)

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes of the kept slices in order.

        Raises:
            OSError: The file cannot be read, or ends too early.
        """
        n_rows = prod(self.source.shape[: self.axis])
        row_bytes = self.source.n_bytes // n_rows
        slice_bytes = row_bytes * self.width // self.source.shape[self.axis]
        with self.source.file.open("rb") as stream:
            for row in range(n_rows):
                stream.seek(self.source.offset + row * row_bytes)
                content = stream.read(row_bytes)
                if len(content) < row_bytes:
                    raise OSError(f"{self.source.file.name} ends within {self.source.name}")
                yield b"".join(content[index * slice_bytes : (index + 1) * slice_bytes] for index in self.kept_slices)


Tensor = FileTensor | SlicedTensor


def read_header(file: Path) -> tuple[dict[str, str], list[FileTensor]]:
    """Return the metadata and the tensors of a safetensors file, the tensors in the order of their bytes.

    Args:
        file: The file.

    Raises:
        UserError: The file cannot be read, is no safetensors file, or is not complete.
    """
    try:
        with file.open("rb") as stream:
            (header_bytes,) = struct.unpack("<Q", stream.read(_HEADER_BYTES))
            if header_bytes > _MAX_HEADER_BYTES:
                raise ValueError("its header is too long")
            header = json.loads(stream.read(header_bytes))
            first = _HEADER_BYTES + header_bytes
            metadata = header.pop("__metadata__", None) or {}
            tensors = [
                FileTensor(
                    name=name,
                    dtype=entry["dtype"],
                    shape=tuple(entry["shape"]),
                    file=file,
                    offset=first + entry["data_offsets"][0],
                    n_bytes=entry["data_offsets"][1] - entry["data_offsets"][0],
                )
                for name, entry in header.items()
            ]
            end = max((tensor.offset + tensor.n_bytes for tensor in tensors), default=first)
            if file.stat().st_size < end:
                raise ValueError("it ends too early")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise UserError(
            f"{file} cannot be read as a safetensors file ({what_failed(error)}); complete the download"
        ) from error
    return metadata, sorted(tensors, key=lambda tensor: tensor.offset)


def write_file(file: Path, tensors: Iterable[Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file whose tensors are copied from other files.

    Args:
        file: The file to write.
        tensors: The tensors. Those of wide dtypes are written first, as the safetensors library does, so that each
            starts at a multiple of its values' size.
        metadata: The metadata of the file.

    Raises:
        OSError: A file cannot be read or written.
    """
    ordered = sorted(tensors, key=lambda tensor: -bits_of(tensor.dtype))
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for tensor in ordered:
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.n_bytes],
        }
        offset += tensor.n_bytes
    encoded = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    encoded += b" " * (-len(encoded) % _ALIGNMENT)
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(encoded)))
        stream.write(encoded)
        for tensor in ordered:
            _write_tensor(stream, tensor)


def _write_tensor(stream: BinaryIO, tensor: Tensor) -> None:
    if isinstance(tensor, FileTensor) and sys.platform == "linux":
        n_written = _send(stream, tensor)
    else:
        n_written = sum(stream.write(chunk) for chunk in tensor.chunks())
    if n_written != tensor.n_bytes:
        raise OSError(f"{tensor.name} has {n_written} bytes instead of {tensor.n_bytes}")


def _send(stream: BinaryIO, tensor: FileTensor) -> int:
    """Let the operating system copy a tensor, which needs no memory of this process; return the copied bytes."""
    stream.flush()
    n_sent = 0
    with tensor.file.open("rb") as source:
        while n_sent < tensor.n_bytes:
            n_bytes = os.sendfile(
                stream.fileno(), source.fileno(), tensor.offset + n_sent, min(tensor.n_bytes - n_sent, _MOST_SENT_BYTES)
            )
            if not n_bytes:
                break
            n_sent += n_bytes
    stream.seek(0, os.SEEK_END)
    return n_sent


def bits_of(dtype: str) -> int:
    """Return the bits of one value of a dtype of the format: 16 for ``BF16``, 8 for ``F8_E4M3``."""
    if dtype in _BITS:
        return _BITS[dtype]
    digits = "".join(character for character in dtype.partition("_")[0] if character.isdigit())
    return int(digits) if digits else 8
