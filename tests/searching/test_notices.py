"""Lines about data that take some time to read."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

from raysearch.core.space import SPACES
from raysearch.searching.notices import announce_large_files, warn_of_formats


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


def test_formats_that_cannot_hold_the_masks_are_named_before_a_search() -> None:
    config = {"model_type": "mistral", "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    config |= {"num_key_value_heads": 2, "sliding_window": None}

    def warnings(space: str, **changes: Any) -> list[str]:
        observer = Mock()
        info = SimpleNamespace(config=config | changes, code={}, model=SimpleNamespace(name="tiny"))
        warn_of_formats(info, SPACES[space], observer)  # type: ignore[arg-type]
        return [warning.args[0] for warning in observer.warn.call_args_list]

    assert not warnings("halves")
    assert not warnings("pairs", head_dim=32)
    (partly,) = warnings("halves", head_dim=32)  # as in Mistral Nemo
    assert "can be exported as a GGUF file of the architecture deci only (a checkpoint" in partly
    (nowhere,) = warnings("attention", hidden_act="gelu")
    assert "but not exported" in nowhere
