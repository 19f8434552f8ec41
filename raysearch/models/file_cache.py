"""Caches values that depend on files only: a model's sizes, its tokenizer's fingerprint, drawn samples.

With the cache, a search whose evaluations are all in the ledger needs neither torch nor transformers, and a search in a
new store reads less. The key of a value is the SHA-256 of everything that the value depends on: the content of the
files, the options, the code of raysearch and the versions of the libraries. So a changed file never gets an old value.
The digest of a large file is cached too, and is used while the file has the same size, times and inode, as in git's
index. `FileCache.trim` deletes the least recently used values; all values may be deleted at any time.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import logging
import os
import platform
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysearch.core.digest import digest
from raysearch.core.paths import atomic_file
from raysearch.models.spec import LocatedModel

_log = logging.getLogger(__name__)
_FOLDER = "files"
_MOST_BYTES = 2**28  # of all values together
_LARGE = 2**22  # bytes; the digests of smaller files are not cached
_SETTLED_NS = 2 * 10**9  # a file that has just changed may change again within one tick of the file system's clock
_LIBRARIES = ("jinja2", "numpy", "safetensors", "tokenizers", "torch", "transformers")
_ROOMS = ("core", "generation", "calibration", "checkpoints", "models", "evaluation")  # their code decides the values
_WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx"}


@dataclass(frozen=True)
class FileCache:
    """The cached values of a folder.

    Args:
        folder: The user's cache folder; None to cache nothing.
    """

    folder: Path | None

    def get(self, key: Mapping[str, Any]) -> bytes | None:
        """Return the cached value of a key of JSON values; None if there is none or it is damaged."""
        if self.folder is None:
            return None
        file = self._file(key)
        try:
            checksum, _, content = file.read_bytes().partition(b"\n")
            os.utime(file)  # the time of last use
        except OSError:
            return None
        if checksum.decode(errors="replace") != hashlib.sha256(content).hexdigest():
            _log.info("the cached value %s is damaged, so it is computed again", file)
            return None
        _log.debug("the cached value %s is used", file)
        return content

    def put(self, key: Mapping[str, Any], content: bytes) -> None:
        """Cache a value, unless the folder cannot be written.

        Args:
            key: The key, of JSON values.
            content: The value.
        """
        if self.folder is None:
            return
        file = self._file(key)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(file) as unfinished:
                unfinished.write_bytes(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
        except OSError as error:
            _log.info("the cache cannot be written, so values are computed again each time: %s", error)

    def trim(self, most: int = _MOST_BYTES) -> None:
        """Delete the least recently used values, so that the remaining ones have `most` bytes at most."""
        if self.folder is None:
            return
        n_bytes = 0
        with suppress(OSError):  # another process may delete them at the same time
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
        if (cached := self.get(key)) is not None:
            stat, digest = json.loads(cached)
            if stat == before:
                return str(digest)
        digest = sha256(file)
        if _stat(file) == before and time.time_ns() - max(before[1:3]) > _SETTLED_NS:
            self.put(key, json.dumps([before, digest]).encode())
        return digest

    def _file(self, key: Mapping[str, Any]) -> Path:
        assert self.folder is not None, "the cache has a folder"
        return self.folder / _FOLDER / digest(key, 64)


def user_cache() -> Path:
    """Return the folder of the user's cache, ``$XDG_CACHE_HOME/raysearch`` on Linux."""
    import platformdirs  # only here, since replicas and benchmarks do not need it

    return platformdirs.user_cache_path("raysearch")


def identity_of_files(model: LocatedModel) -> dict[str, Any] | None:
    """Return everything that a model's sizes and its tokenizer depend on.

    Returns:
        JSON values: the digests of all files of the model's folder but the weights, and `code`. None if the sizes do
        not depend on files of a folder only, or if nothing is cached.
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
        return None  # the error is reported where the file is read
    return {"files": contents, "code": code()}


@functools.cache
def code() -> Sequence[str]:
    """Return the digest of the code of raysearch that reads files, and the versions of the libraries."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for file in sorted(file for room in _ROOMS for file in (package / room).rglob("*.py")):
        digest.update(f"{file.relative_to(package)} {sha256(file)}\n".encode())
    versions = [importlib.metadata.version(name) for name in _LIBRARIES]
    return [digest.hexdigest(), platform.python_version(), *versions]


def sha256(file: Path) -> str:
    """Read a file, and return the SHA-256 of its content."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _stat(file: Path) -> list[int]:
    """Return the numbers that change with a file's content: size, times of change, inode and device."""
    stat = file.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_dev]
