"""The dense model's logits are computed once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from raysearch.evaluation.inline_pool import InlinePool
from raysearch.evaluation.replica import Replica
from raysearch.models.stack import LayerStack
from raysearch.recovery import teacher
from raysearch.recovery.prompts import TrainingRow
from raysearch.recovery.teacher import TopLogits, top_logits_of
from tests.models.families import FAMILIES, VOCABULARY

ROWS = [TrainingRow((3, 4, 5, 6, 7, 8), 1), TrainingRow((7, 8, 9), 1)]
Taught = Callable[[str, Sequence[int], int], list[TopLogits]]


@pytest.fixture
def taught(tmp_path: Path) -> Iterator[Taught]:
    """Return a function that computes the top logits of rows into a folder."""
    with closing(InlinePool(lambda: Replica(LayerStack(FAMILIES["llama"]())))) as pool:
        yield lambda name, starts, k: top_logits_of(ROWS, starts, k, tmp_path / name, lambda: pool, lambda line: None)


def assert_same(actual: list[TopLogits], expected: list[TopLogits]) -> None:
    for actual_row, expected_row in zip(actual, expected, strict=True):
        assert np.array_equal(actual_row.ids, expected_row.ids)
        assert np.array_equal(actual_row.log_p, expected_row.log_p)


def test_what_is_kept_of_each_token_and_no_more_than_there_are(taught: Taught, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = taught("whole", [1, 3], 10 * VOCABULARY)
    assert [row.ids.shape for row in whole] == [(5, VOCABULARY), (0, VOCABULARY)]
    monkeypatch.setattr(teacher, "_POSITIONS", 2)
    assert_same(taught("in parts", [1, 3], 10 * VOCABULARY), whole)


def test_logits_are_computed_once(taught: Taught, monkeypatch: pytest.MonkeyPatch) -> None:
    first = taught("teacher", [1, 1], 5)
    monkeypatch.setattr(teacher.TeacherJob, "run", pytest.fail)
    assert_same(taught("teacher", [1, 1], 5), first)
