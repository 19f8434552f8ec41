"""What is checked before a recovery begins."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raysearch.core.mask import Mask
from raysearch.errors import UserError
from raysearch.recovery.healing import check_device, check_room
from raysearch.recovery.spec import RecoveryOptions


def test_the_disk_has_to_hold_what_the_method_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = SimpleNamespace(
        parameters=6 * 10**9, layer_parameters=(10**9,) * 4, n_layers=4, hidden_size=1000, dtype="bfloat16"
    )

    def fits(method: Any, free: float, scored_tokens: int = 0) -> bool:
        options = RecoveryOptions(method=method, lora_r=10, top_k=64)
        what: Any = SimpleNamespace(
            what=SimpleNamespace(info=info),
            spec=SimpleNamespace(options=options),
            mask=Mask.of(1, 2),
            folder=tmp_path / "kept",
            shared=tmp_path / "kept",
        )
        monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=int(free)))
        try:
            check_room(what, tmp_path / "out", scored_tokens)
        except UserError as error:
            assert "free some space, or name another folder" in str(error)
            return False
        return True

    models = 2 * 2 * 4e9  # pruned and merged, of 4e9 parameters in bfloat16
    adapter, full = models + 20 * 10 * 1000 * 2 * 40, models + 4e9 * 40
    for method, needed in (("lora", adapter), ("qlora", adapter), ("full", full)):
        assert fits(method, needed) and not fits(method, needed - 1), method
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/rows.jsonl").write_bytes(b"x" * 1000)
    assert fits("full", full - 1000), "what is there already is not written again"
    logits = 10**6 * 384
    (tmp_path / "kept/teacher").mkdir()
    (tmp_path / "kept/teacher/0.npz").write_bytes(b"x" * 500)
    assert fits("full", full - 1000 + logits - 500, 10**6) and not fits("full", full - 1000 + logits - 501, 10**6)


def test_a_gpu_that_no_training_would_take_is_refused() -> None:
    for device in ("auto", "cpu", "cuda", "cuda:0"):
        check_device(device)
    with pytest.raises(UserError, match=r"model.device=cuda:1 .* model.device=cuda and CUDA_VISIBLE_DEVICES=1 in the"):
        check_device("cuda:1")
