"""Values that depend on files are cached, and not used after a change of the files."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from raysearch.models import file_cache as module
from raysearch.models.file_cache import FileCache, sha256

LARGE = 2**22


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files whose content is read, once for each reading."""
    files: list[Path] = []

    def read(file: Path) -> str:
        files.append(file)
        return sha256(file)

    monkeypatch.setattr(module, "sha256", read)
    return files


def test_values_are_cached_by_everything_that_they_depend_on(tmp_path: Path) -> None:
    cache = FileCache(tmp_path / "cache")
    assert cache.get({"a": 1, "b": [2]}) is None
    cache.put({"a": 1, "b": [2]}, b"value")
    assert FileCache(tmp_path / "cache").get({"b": [2], "a": 1}) == b"value"
    assert cache.get({"a": 1, "b": [3]}) is None
    disabled = FileCache(None)
    disabled.put({"a": 1}, b"value")
    assert disabled.get({"a": 1}) is None


def test_a_damaged_value_is_not_returned(tmp_path: Path) -> None:
    cache = FileCache(tmp_path)
    cache.put({"a": 1}, b"some value")
    (file,) = (tmp_path / "files").iterdir()
    content = file.read_bytes()
    for damaged in (b"", content[:-1], content[:-1] + b"x", b"\xff" + content[1:]):
        file.write_bytes(damaged)
        assert cache.get({"a": 1}) is None, damaged


def test_a_large_file_is_read_again_only_if_it_changed(
    tmp_path: Path, reads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    cache = FileCache(tmp_path / "cache")
    file.write_bytes(b"a" * LARGE)
    long_ago = time.time_ns() - 10**10
    monkeypatch.setattr(module, "_SETTLED_NS", 0)
    os.utime(file, ns=(long_ago, long_ago))
    first = cache.sha256(file)
    assert cache.sha256(file) == first == sha256(file)
    assert len(reads) == 1
    file.write_bytes(b"b" * LARGE)  # of the same size …
    os.utime(file, ns=(long_ago, long_ago))  # … and time
    assert cache.sha256(file) == sha256(file) != first
    replacement = tmp_path / "other"
    replacement.write_bytes(b"c" * LARGE)
    os.utime(replacement, ns=(long_ago, long_ago))
    replacement.replace(file)
    assert cache.sha256(file) == sha256(file)


def test_a_file_that_has_just_changed_is_read_each_time(
    tmp_path: Path, reads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    cache = FileCache(tmp_path / "cache")
    file.write_bytes(b"a" * LARGE)
    monkeypatch.setattr(module, "_SETTLED_NS", 10**15)
    for _ in range(2):
        cache.sha256(file)
    assert len(reads) == 2


def test_the_least_recently_used_values_are_deleted(tmp_path: Path) -> None:
    cache = FileCache(tmp_path)
    for number in range(3):
        cache.put({"number": number}, bytes(1000))
        (newest,) = [file for file in (tmp_path / "files").iterdir() if file.stat().st_mtime_ns > 10**18]
        os.utime(newest, ns=(number, number))
    assert cache.get({"number": 0}) is not None, "this is a use"
    cache.trim(2500)
    assert [number for number in range(3) if cache.get({"number": number}) is not None] == [0, 2]
    cache.trim(0)
    assert not list((tmp_path / "files").iterdir())
    FileCache(None).trim(0)
