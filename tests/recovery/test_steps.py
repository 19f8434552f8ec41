"""The checks before a recovery begins."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raysearch.core.mask import Mask
from raysearch.core.site import Sites
from raysearch.errors import UserError
from raysearch.models.source import locate
from raysearch.recovery.adapter import check_trainable
from raysearch.recovery.planned_recovery import check_first_gpu, check_room
from raysearch.recovery.spec import RecoveryOptions
from raysearch.recovery.steps import remove_models
from tests.checkpoints.test_pruning import MULTIMODAL, write_model
from tests.sentences import Sentences


@pytest.mark.parametrize(("method", "n_bytes"), [("lora", 3 * 2), ("full", 2 * 2 + 40)])
def test_the_disk_has_to_hold_the_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: Any, n_bytes: int, sentences: Sentences
) -> None:
    what: Any = SimpleNamespace(
        assessment=SimpleNamespace(
            info=SimpleNamespace(parameters=6 * 10**9, sites=Sites.of_layers([10**9] * 4), dtype="bfloat16")
        ),
        spec=SimpleNamespace(options=RecoveryOptions(method=method)),
        mask=Mask.of(1, 2),
        ledger=SimpleNamespace(path=tmp_path / "ledger.db"),
    )
    free = n_bytes * 4 * 10**9
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
    check_room(what)
    free -= 1
    with sentences.refused(UserError):
        check_room(what)


def test_a_removal_that_is_killed_leaves_nothing_that_is_taken_for_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    markers = [
        tmp_path / name for name in ("trained/history.json", "pruned/raysearch.json", "recovered/raysearch.json")
    ]
    for marker in markers:
        marker.parent.mkdir()
        marker.touch()
        (marker.parent / "model.safetensors").touch()
    monkeypatch.setattr(shutil, "rmtree", lambda folder, ignore_errors: None)
    remove_models(tmp_path, RecoveryOptions(method="full"))
    assert not [marker for marker in markers if marker.exists()]


def test_a_gpu_that_no_training_would_take_is_refused(sentences: Sentences) -> None:
    for device in ("auto", "cpu", "cuda", "cuda:0"):
        check_first_gpu(device)
    with sentences.refused(UserError):
        check_first_gpu("cuda:1")


def test_a_model_that_sees_is_not_trained(tmp_path: Path, sentences: Sentences) -> None:
    spec = write_model(tmp_path / "llava", "llava", MULTIMODAL["llava"])
    with sentences.refused(UserError):
        check_trainable(locate(spec), RecoveryOptions())
