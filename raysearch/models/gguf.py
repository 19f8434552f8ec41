"""Keeps GGUF files as safetensors, so that each is dequantised once.

A kept file is an ordinary checkpoint in a folder of the user's cache, named by the file's digest and the dtype. The
folder is written beside its place under a lock and renamed when it is complete, so a killed process leaves none that is
used. Its checksums are compared whenever it is read. The `MOST` last used stay; all may be deleted at any time.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from filelock import FileLock

from raysearch.errors import UserError, what_failed
from raysearch.models.file_cache import FileCache, sha256
from raysearch.models.spec import LocatedModel

#: The number of the way in which files are read, in the names of the folders that keep them. A folder of another number
#: is not used: before 2, what `gguf_config` reads was left out.
READING = 2
#: How many kept files there may be in a folder.
MOST = 4
_CHECKSUMS = "checksums.json"
_UNFINISHED = ".unfinished"

ModelT = TypeVar("ModelT")


def is_whole(folder: Path, cache: FileCache) -> bool:
    """Return whether a folder holds a GGUF file as safetensors, and all of it is as it was written."""
    try:
        checksums = json.loads((folder / _CHECKSUMS).read_text(encoding="utf-8"))
        whole = all(cache.sha256(folder / name) == checksum for name, checksum in checksums.items())
        if whole:
            os.utime(folder)  # used last
    except (OSError, ValueError, AttributeError):
        return False
    return whole


def read_or_keep(
    model: LocatedModel, read: Callable[[LocatedModel], ModelT], write: Callable[[ModelT, LocatedModel, Path], None]
) -> ModelT:
    """Read a model from where it is kept, or else from its GGUF file, and write it there for the next time.

    Other processes wait meanwhile, and then find it there. Where nothing can be kept, a warning says why.
    """
    from safetensors import SafetensorError

    if (place := model.keep_in) is None:
        return read(model)
    unfinished = place.with_name(place.name + _UNFINISHED)
    with ExitStack() as stack:
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FileLock(place.parent / ".lock", fallback_to_soft=False))
        except OSError as error:
            _warn(place, error)
            return read(model)
        if is_whole(place, FileCache(None)):
            return read(replace(model, location=str(place), gguf=None))
        found = read(model)
        try:
            shutil.rmtree(unfinished, ignore_errors=True)  # of a process that was killed
            unfinished.mkdir()
            write(found, model, unfinished)
            _finish(unfinished, place)
        except (OSError, UserError, SafetensorError) as error:
            _warn(place, error)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        return found


def _finish(unfinished: Path, place: Path) -> None:
    """Put a folder in its place, and remove those that were not used for longest."""
    checksums = {file.name: sha256(file) for file in sorted(unfinished.iterdir())}
    (unfinished / _CHECKSUMS).write_text(json.dumps(checksums), encoding="utf-8")
    shutil.rmtree(place, ignore_errors=True)  # damaged
    unfinished.rename(place)
    folders = [file.parent for file in place.parent.glob(f"*/{_CHECKSUMS}")]
    whole = [folder for folder in folders if folder.suffix != _UNFINISHED]
    for folder in sorted(whole, key=os.path.getmtime, reverse=True)[MOST:]:
        shutil.rmtree(folder, ignore_errors=True)


def _warn(place: Path, error: Exception) -> None:
    warnings.warn(f"{place} cannot keep the model as safetensors ({what_failed(error)})", stacklevel=3)


@contextmanager
def read_fast() -> Iterator[None]:
    """Within the context transformers reads GGUF files in a fraction of the time, to the same values.

    gguf's reader slices a memory map several times for every word of a vocabulary, and its table of tensor names is
    made anew for each module of a model.
    """
    import gguf

    kinds = gguf.GGUFValueType

    class Reader(gguf.GGUFReader):
        def _get(self, offset: Any, dtype: Any, count: Any = 1, override_order: Any = None) -> Any:
            self.data: Any = np.asarray(self.data)  # a plain array over the same memory
            self._check_end(int(offset) + np.dtype(dtype).itemsize * int(count))
            return super()._get(offset, dtype, count, override_order)

        def _get_field_parts(self, orig_offs: Any, raw_type: Any) -> Any:
            kind = kinds(self._get(orig_offs, np.uint32)[0]) if raw_type == kinds.ARRAY else None
            if kind is None or kind is kinds.ARRAY:
                return super()._get_field_parts(orig_offs, raw_type)
            begin = [self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64)]
            start, n_items = int(orig_offs) + 12, int(begin[1][0])
            if kind is kinds.STRING:
                items, end = self._strings(start, n_items)
                data = range(3, 3 + 2 * n_items, 2)
            else:
                values = self._get(start, self.gguf_scalar_to_np[kind], n_items)
                items, end = [*values.reshape(-1, 1)], start + values.nbytes
                data = range(2, 2 + n_items)
            return end - orig_offs, begin + items, [*data], [kinds.ARRAY, *([kind] if n_items else [])]

        def _strings(self, start: int, n_items: int) -> tuple[list[Any], int]:
            """Return the length and the bytes of strings, one after the other, and where they end."""
            parts, number = [], np.dtype(np.uint64).newbyteorder(self.byte_order)
            for _ in range(n_items):
                self._check_end(start + 8)
                length = self.data[start : start + 8].view(number)
                start, end = start + 8, start + 8 + int(length[0])
                self._check_end(end)
                parts += [length, self.data[start:end]]
                start = end
            return parts, start

        def _check_end(self, end: int) -> None:
            if end > len(self.data):
                raise ValueError("it ends too early")  # else a wrong length is counted to the end, for hours

    own = {"GGUFReader": gguf.GGUFReader, "get_tensor_name_map": gguf.get_tensor_name_map}
    vars(gguf).update(GGUFReader=Reader, get_tensor_name_map=functools.cache(gguf.get_tensor_name_map))
    try:
        yield
    finally:
        vars(gguf).update(own)
