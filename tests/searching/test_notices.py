"""Lines about data that take some time to read."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

from raysearch.searching.notices import announce_large_files


def test_a_large_file_is_reported_once_before_it_is_read(tmp_path: Path) -> None:
    for name, n_bytes in (("small.txt", 10), ("large.txt", 48 * 10**6)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(n_bytes)
    large = str(tmp_path / "large.txt")
    paths = [str(tmp_path / "small.txt"), large, large, str(tmp_path / "none.txt"), None]
    parts: Any = [SimpleNamespace(data=SimpleNamespace(rows=SimpleNamespace(path=path, name=None))) for path in paths]
    observer = Mock()
    announce_large_files(SimpleNamespace(calibrations=parts), observer)  # type: ignore[arg-type]
    assert observer.mock_calls == [call.reading(f"reading and tokenising data.path={large} (48 MB)")]
