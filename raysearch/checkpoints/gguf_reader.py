"""Reads GGUF files, also those in parts, in a fraction of the time that gguf takes, with the same values."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from raysearch.checkpoints.gguf_parts import parts_of
from raysearch.errors import UserError


@contextmanager
def read_fast() -> Iterator[None]:
    """Let transformers read GGUF files by `reader_class` within the context.

    transformers builds gguf's table of tensor names again for each module of a model; it is built once here.
    """
    import gguf

    originals = {"GGUFReader": gguf.GGUFReader, "get_tensor_name_map": gguf.get_tensor_name_map}
    vars(gguf).update(GGUFReader=reader_class(), get_tensor_name_map=functools.cache(gguf.get_tensor_name_map))
    try:
        yield
    finally:
        vars(gguf).update(originals)


def reader_class() -> Any:
    """Return the class of a reader of GGUF files that has the tensors of all parts of a file.

    It is a subclass of gguf's reader, which slices a memory map several times for every word of a vocabulary.
    """
    import gguf

    if hasattr(gguf.GGUFReader, "reads_parts"):  # within `read_fast`
        return gguf.GGUFReader
    kinds = gguf.GGUFValueType

    class Reader(gguf.GGUFReader):
        reads_parts = True

        def __init__(self, path: Any, mode: Any = "r") -> None:
            super().__init__(path, mode)
            if (n_parts := self._value("split.count")) > 1:
                self._add_parts(Path(path), n_parts)

        def _add_parts(self, path: Path, n_parts: int) -> None:
            """Add the tensors of the other parts if this is the first one; refuse parts of another file."""
            parts = parts_of(path)
            if len(parts) != n_parts:
                raise UserError(
                    f"{path} is one of {n_parts} parts of a GGUF file, but its name does not say so; name the parts "
                    f"{path.stem}-00001-of-{n_parts:05}.gguf and so on"
                )
            number = self._value("split.no")
            if path != parts[number]:
                raise ValueError(f"{path.name} is part {number + 1}")
            if number > 0:
                return
            for part in parts[1:]:
                self.tensors += type(self)(part).tensors
            n_tensors = self._value("split.tensors.count")
            if len(self.tensors) != n_tensors:
                raise ValueError(f"its parts have {len(self.tensors)} tensors instead of {n_tensors}")

        def _value(self, key: str) -> int:
            """Return the number that is the value of a key; 0 if there is none."""
            return int(self.fields[key].contents()) if key in self.fields else 0

        def _get(self, offset: Any, dtype: Any, count: Any = 1, override_order: Any = None) -> Any:
            self.data: Any = np.asarray(self.data)  # a plain array over the same memory
            self._check_end(int(offset) + np.dtype(dtype).itemsize * int(count))
            return super()._get(offset, dtype, count, override_order)

        def _get_field_parts(self, orig_offs: Any, raw_type: Any) -> Any:
            kind = kinds(self._get(orig_offs, np.uint32)[0]) if raw_type == kinds.ARRAY else None
            if kind is None or kind is kinds.ARRAY:
                return super()._get_field_parts(orig_offs, raw_type)
            header = [self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64)]
            start = int(orig_offs) + 12
            n_items = int(header[1][0])
            if kind is kinds.STRING:
                items, end = self._strings(start, n_items)
                data = range(3, 3 + 2 * n_items, 2)
            else:
                values = self._get(start, self.gguf_scalar_to_np[kind], n_items)
                items = [*values.reshape(-1, 1)]
                end = start + values.nbytes
                data = range(2, 2 + n_items)
            return end - orig_offs, header + items, [*data], [kinds.ARRAY, *([kind] if n_items else [])]

        def _strings(self, start: int, n_items: int) -> tuple[list[Any], int]:
            """Return the length and the bytes of each string, and the offset of their end."""
            parts = []
            number = np.dtype(np.uint64).newbyteorder(self.byte_order)
            for _ in range(n_items):
                self._check_end(start + 8)
                length = self.data[start : start + 8].view(number)
                end = start + 8 + int(length[0])
                self._check_end(end)
                parts += [length, self.data[start + 8 : end]]
                start = end
            return parts, start

        def _check_end(self, end: int) -> None:
            if end > len(self.data):
                raise ValueError("it ends too early")  # otherwise a wrong length takes hours to read

    return Reader
