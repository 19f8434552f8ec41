"""Files are written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysearch.core.paths import atomic_file


def test_a_file_is_replaced_by_a_whole_one_or_stays(tmp_path: Path) -> None:
    file = tmp_path / "file"
    for text in ("one", "two"):
        with atomic_file(file) as unfinished:
            assert not unfinished.exists()
            unfinished.write_text(text)
        assert file.read_text() == text
    with pytest.raises(KeyboardInterrupt), atomic_file(file) as unfinished:
        unfinished.write_text("half")
        raise KeyboardInterrupt
    assert file.read_text() == "two"
    assert [*tmp_path.iterdir()] == [file]
