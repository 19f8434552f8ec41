"""Keeps what follows from files alone in the user's cache: a model's sizes, its tokenizer's fingerprint, drawn samples.

A search that the ledger answers then needs neither torch nor transformers, and a search in a new store reads less. A
value is kept under the SHA-256 of everything that it follows from: the content of the files, the options, our own code
and the versions of the libraries. So a changed file never meets an old value. The digest of a large file is kept too,
and is taken for granted while the file has the same size, times and inode, as in git's index. `FileCache.trim` deletes
the values that were not used for longest; all may be deleted at any time.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysearch.core.digest import digest
from raysearch.core.paths import written_whole
from raysearch.models.spec import LocatedModel

_FOLDER = "files"
_MOST_BYTES = 2**28  # of all values
_LARGE = 2**22  # bytes; smaller files are read each time
_SETTLED_NS = 2 * 10**9  # a file that was changed just now may change again within one tick of the file system's clock
_LIBRARIES = ("jinja2", "numpy", "safetensors", "tokenizers", "torch", "transformers")
_ROOMS = ("core", "generation", "calibration", "models", "evaluation")  # whose code decides what is kept
_WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx"}


@dataclass(frozen=True)
class FileCache:
    """The values that are kept in a folder."""

    folder: Path | None  #: where; None to keep nothing

    def get(self, key: Mapping[str, Any]) -> bytes | None:
        """Return what is kept under a key of JSON values; None if there is nothing, or it is damaged."""
        if self.folder is None:
            return None
        place = self._place(key)
        try:
            checksum, _, content = place.read_bytes().partition(b"\n")
            os.utime(place)  # used last
        except OSError:
            return None
        return content if checksum.decode(errors="replace") == hashlib.sha256(content).hexdigest() else None

    def put(self, key: Mapping[str, Any], content: bytes) -> None:
        """Keep something under a key; what cannot be written is not kept."""
        if self.folder is None:
            return
        place = self._place(key)
        with suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            with written_whole(place) as unfinished:
                unfinished.write_bytes(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)

    def trim(self, most: int = _MOST_BYTES) -> None:
        """Delete the values that were not used for longest, until the others have so many bytes at most."""
        if self.folder is None:
            return
        n_bytes = 0
        with suppress(OSError):  # another process deletes them, too
            stats = {file: file.stat() for file in (self.folder / _FOLDER).iterdir()}
            for file in sorted(stats, key=lambda file: stats[file].st_mtime_ns, reverse=True):
                n_bytes += stats[file].st_size
                if n_bytes > most:
                    file.unlink(missing_ok=True)

    def sha256(self, file: Path) -> str:
        """Return the SHA-256 of a file's content."""
        before = _stat(file)
        if self.folder is None or before[0] < _LARGE:
            return sha256(file)
        key = {"file": str(file.resolve())}
        if (known := self.get(key)) is not None:
            stat, digest = json.loads(known)
            if stat == before:
                return str(digest)
        digest = sha256(file)
        if _stat(file) == before and time.time_ns() - max(before[1:3]) > _SETTLED_NS:
            self.put(key, json.dumps([before, digest]).encode())
        return digest

    def _place(self, key: Mapping[str, Any]) -> Path:
        assert self.folder is not None, "something is kept"
        return self.folder / _FOLDER / digest(key, 64)


def user_cache() -> Path:
    """Return the folder of the user's cache, ``$XDG_CACHE_HOME/raysearch`` on Linux."""
    import platformdirs  # which replicas, and benchmarks beside torch and transformers alone, do without

    return platformdirs.user_cache_path("raysearch")


def identity_of_files(model: LocatedModel) -> dict[str, Any] | None:
    """Return all that a model's sizes and its tokenizer follow from; None if that is not in files of a folder alone.

    The weights are left out: neither follows from them.
    """
    if model.cache is None or model.is_hub or model.gguf is not None or model.trust_remote_code:
        return None
    files = [*model.folder.iterdir(), *(model.folder / "additional_chat_templates").glob("*")]
    cache = FileCache(model.cache)
    try:
        contents = {
            file.relative_to(model.folder).as_posix(): cache.sha256(file)
            for file in sorted(files)
            if file.is_file() and file.suffix not in _WEIGHTS
        }
    except OSError:
        return None  # which is explained where the file is needed
    return {"files": contents, "code": code()}


@functools.cache
def code() -> Sequence[str]:
    """Return the digest of our own code that reads files, and the versions of libraries."""
    package, digest = Path(__file__).parents[1], hashlib.sha256()
    for file in sorted(file for room in _ROOMS for file in (package / room).rglob("*.py")):
        digest.update(f"{file.relative_to(package)} {sha256(file)}\n".encode())
    versions = [importlib.metadata.version(name) for name in _LIBRARIES]
    return [digest.hexdigest(), platform.python_version(), *versions]


def sha256(file: Path) -> str:
    """Return the SHA-256 of a file's content, which is read."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _stat(file: Path) -> list[int]:
    """Return what changes with a file's content: first its size, then when it was changed."""
    stat = file.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_dev]
