"""A search of a GGUF file warns before its first round if `export --gguf` would refuse masks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typing_extensions import override

import raysearch
from raysearch.core.place_limits import PlaceLimits
from raysearch.core.problem import Problem
from raysearch.core.site import Sites
from raysearch.models.spec import ModelSpec
from raysearch.searching.events import WarningRaised
from raysearch.searching.notices import warn_of_refused_masks
from raysearch.searching.observer import Observer
from tests.models.conftest import write_llama


class Listener(Observer):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    @override
    def on_warning_raised(self, event: WarningRaised) -> None:
        self.warnings.append(event.message)


def warnings_of(path: Path | str, remove: int | str, n_remove: int) -> list[str]:
    observer = Listener()
    problem = Problem.create(8, n_remove)
    warn_of_refused_masks(ModelSpec("tiny", str(path)), problem, remove, observer)
    return observer.warnings


def test_the_warning_gives_the_reason_of_the_refusal(tmp_path: Path) -> None:
    smollm3 = write_llama(tmp_path / "smollm3.gguf", 8, architecture="smollm3")
    for remove, n_remove in ((1, 1), ("1..3", 3), ("auto", 7)):
        (warning,) = warnings_of(smollm3, remove, n_remove)
        assert warning.startswith("export --gguf will refuse some masks of this search: ")
        assert "which layers rotate positions follows from their places, one in 4" in warning
    keys: dict[str, Any] = {"attention.shared_kv_layers": 2}
    shared = write_llama(tmp_path / "shared.gguf", 8, **keys)
    (warning,) = warnings_of(shared, 2, 2)
    assert warning.startswith("export --gguf will refuse all masks of this search: ")


def test_groups_that_a_target_allows_are_not_refused(tmp_path: Path) -> None:
    smollm3 = write_llama(tmp_path / "smollm3.gguf", 10, architecture="smollm3")
    problem = Problem.of_model(Sites.of_equal_layers(10), 8, limits=PlaceLimits(group=4))
    observer = Listener()
    for remove in (8, "1..9", "auto"):
        warn_of_refused_masks(ModelSpec("tiny", str(smollm3)), problem, remove, observer)
    assert not observer.warnings


def test_a_search_warns(tmp_path: Path) -> None:
    """llama.cpp takes a Gemma 2 of 46 layers for the model with 27B parameters, but not one with fewer layers."""
    file = write_llama(tmp_path / "deep.gguf", 46, architecture="gemma2")
    text = tmp_path / "text.txt"
    text.write_text("the river carried seven letters " * 20)
    observer = Listener()
    data = {"path": text, "samples": 1, "seq_len": 8}
    values: dict[str, Any] = {"model": {"path": file, "cache": False}, "data": data, "store": tmp_path / "store"}
    raysearch.search(
        "model=custom",
        "data=file",
        remove=1,
        protect=range(45),
        cluster="inline",
        tracking="none",
        observer=observer,
        **values,
    )
    (warning,) = (warning for warning in observer.warnings if "gguf" in warning)
    assert "refuse all masks" in warning
    assert "computes a gemma2 of 46 layers differently from one of 45" in warning


def test_if_no_mask_is_refused_there_is_no_warning(tmp_path: Path) -> None:
    gemma2 = write_llama(tmp_path / "gemma2.gguf", 8, architecture="gemma2")
    assert warnings_of(gemma2, "1..3", 3) == []
    assert warnings_of("owner/name", 1, 1) == []
