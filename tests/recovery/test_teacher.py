"""The dense model's logits are computed once, and again where their file was damaged."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from raysearch.evaluation.inline_pool import InlinePool
from raysearch.evaluation.replica import Replica
from raysearch.models.stack import LayerStack
from raysearch.recovery import teacher
from raysearch.recovery.prompts import Row
from raysearch.recovery.teacher import Teaching, teach
from tests.models.families import FAMILIES, VOCABULARY


def test_what_is_kept_of_each_token_and_no_more_than_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [Row((3, 4, 5, 6, 7, 8), 1), Row((7, 8, 9), 1)]
    with closing(InlinePool(lambda: Replica(LayerStack(FAMILIES["llama"]())))) as pool:

        def taught(folder: str) -> list[Teaching]:
            return teach(rows, [1, 3], 10 * VOCABULARY, tmp_path / folder, lambda: pool, lambda line: None)

        whole = taught("whole")
        assert [one.ids.shape for one in whole] == [(5, VOCABULARY), (0, VOCABULARY)]
        monkeypatch.setattr(teacher, "_POSITIONS", 2)
        for one, other in zip(taught("in parts"), whole, strict=True):
            assert np.array_equal(one.ids, other.ids) and np.array_equal(one.log_p, other.log_p)


@pytest.mark.parametrize("damage", [lambda whole: whole, lambda whole: whole[: len(whole) // 2], lambda whole: b""])
def test_logits(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    rows = [Row((3, 4, 5, 6), 1), Row((7, 8, 9), 1)]
    with closing(InlinePool(lambda: Replica(LayerStack(FAMILIES["llama"]())))) as pool:

        def taught() -> list[Teaching]:
            return teach(rows, [1, 1], 5, tmp_path / "teacher", lambda: pool, lambda line: None)

        first = taught()
        (file,) = (tmp_path / "teacher").iterdir()
        file.write_bytes(damage(file.read_bytes()))
        for one, other in zip(taught(), first, strict=True):
            assert np.array_equal(one.ids, other.ids) and np.array_equal(one.log_p, other.log_p)
