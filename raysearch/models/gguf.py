"""Keeps copies of GGUF files as safetensors, so that each file is dequantised once.

A copy is an ordinary checkpoint in a folder of the user's cache, named by the file's digest and the dtype. The folder
is written under another name and a lock, and renamed when it is complete, so an incomplete copy is never used. Its
checksums are compared whenever it is read. The `MAX_COPIES` last used copies stay; all may be deleted at any time.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from filelock import FileLock

from raysearch.errors import UserError
from raysearch.models.file_cache import FileCache, sha256
from raysearch.models.spec import LocatedModel
from raysearch.text.sentences import what_failed

#: The version of the code that reads GGUF files, in the names of the copies' folders. Copies of another version are not
#: used: version 1 left out what `gguf_config` reads.
READING = 2
#: The largest number of copies in a cache folder.
MAX_COPIES = 4
_CHECKSUMS = "checksums.json"
_UNFINISHED = ".unfinished"

ModelT = TypeVar("ModelT")


def is_whole(folder: Path, cache: FileCache) -> bool:
    """Return whether a folder holds a complete copy of a GGUF file, whose files have their checksums.

    Args:
        folder: The folder.
        cache: The cache of the files' digests.

    Returns:
        Whether the copy can be used.
    """
    try:
        checksums = json.loads((folder / _CHECKSUMS).read_text(encoding="utf-8"))
        if any(cache.sha256(folder / name) != checksum for name, checksum in checksums.items()):
            return False
        os.utime(folder)  # the time of last use
    except (OSError, ValueError, AttributeError):
        return False
    return True


def read_or_keep(
    model: LocatedModel, read: Callable[[LocatedModel], ModelT], write: Callable[[ModelT, LocatedModel, Path], None]
) -> ModelT:
    """Read a model from its copy as safetensors; if there is none, read its GGUF file and write a copy.

    Other processes wait for the copy. If it cannot be written, a warning is issued with the reason.

    Args:
        model: The model, whose `copy_folder` is the folder of the copy; None to read it without a copy.
        read: Reads a model from its files.
        write: Writes a model that was read from its files to a folder.

    Returns:
        The model.
    """
    from safetensors import SafetensorError

    if (copy := model.copy_folder) is None:
        return read(model)
    unfinished = copy.with_name(copy.name + _UNFINISHED)
    with ExitStack() as stack:
        try:
            copy.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FileLock(copy.parent / ".lock", fallback_to_soft=False))
        except OSError as error:
            _warn(copy, error)
            return read(model)
        if is_whole(copy, FileCache(None)):
            return read(replace(model, location=str(copy), gguf=None))
        loaded = read(model)
        try:
            shutil.rmtree(unfinished, ignore_errors=True)  # left by a process that was killed
            unfinished.mkdir()
            write(loaded, model, unfinished)
            _finish(unfinished, copy)
        except (OSError, UserError, SafetensorError) as error:
            _warn(copy, error)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        return loaded


def _finish(unfinished: Path, copy: Path) -> None:
    """Rename the folder of a complete copy, and remove the least recently used copies."""
    checksums = {file.name: sha256(file) for file in sorted(unfinished.iterdir())}
    (unfinished / _CHECKSUMS).write_text(json.dumps(checksums), encoding="utf-8")
    shutil.rmtree(copy, ignore_errors=True)  # a damaged copy
    unfinished.rename(copy)
    folders = [file.parent for file in copy.parent.glob(f"*/{_CHECKSUMS}")]
    copies = [folder for folder in folders if folder.suffix != _UNFINISHED]
    for folder in sorted(copies, key=os.path.getmtime, reverse=True)[MAX_COPIES:]:
        shutil.rmtree(folder, ignore_errors=True)


def _warn(copy: Path, error: Exception) -> None:
    warnings.warn(f"{copy} cannot keep the model as safetensors ({what_failed(error)})", stacklevel=3)
