"""Observers that pass calls on, and lines about data."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

from raysearch.searching.observer import Observer, Prefixed, tell_of_large_files


def test_only_assessment_lines_and_warnings_have_a_prefix() -> None:
    listening = Mock(spec=Observer)
    observer = Prefixed("mask {3}: ", listening)
    observer.assessing("step 1")
    observer.warn("too fast")
    observer.recording("written")
    calls = [call.assessing("mask {3}: step 1"), call.warn("mask {3}: too fast"), call.recording("written")]
    assert listening.mock_calls == calls


def test_a_large_file_is_reported_once_before_it_is_read(tmp_path: Path) -> None:
    for name, n_bytes in (("small.txt", 10), ("large.txt", 48 * 10**6)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(n_bytes)
    large = str(tmp_path / "large.txt")
    paths = [str(tmp_path / "small.txt"), large, large, str(tmp_path / "none.txt"), None]
    parts: Any = [SimpleNamespace(data=SimpleNamespace(rows=SimpleNamespace(path=path, name=None))) for path in paths]
    observer = Mock()
    tell_of_large_files(SimpleNamespace(calibrations=parts), observer)  # type: ignore[arg-type]
    assert observer.mock_calls == [call.reading(f"reading and tokenising data.path={large} (48 MB)")]
