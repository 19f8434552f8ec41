"""A study that was killed goes on where it was, by the same command."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.cli.conftest import World
from tests.cli.found import evaluations, found
from tests.cli.studies import study_words
from tests.faults.injection import assert_all_gone, do, kill_at

pytestmark = [pytest.mark.slow, pytest.mark.faults]


def test_a_study_killed_twice_ends_the_same_and_runs_nothing_twice(world: World, here: Path) -> None:
    words = ["study", *study_words(world, **{"data.shard_samples": 1}), "--json"]
    value = found(do(*words, "store=undisturbed"))
    mark = uuid.uuid4().hex
    known: dict[tuple[str, str, int], bytes] = {}
    for least in (40, 120):
        kill_at(words, "mlruns", least, mark=mark)
        now = evaluations("mlruns")
        assert known.items() <= now.items()
        known = now
    again = found(do(*words, mark=mark))
    assert evaluations("mlruns") == evaluations("undisturbed")
    assert again["study_id"] == value["study_id"]
    for mine, theirs in zip(again["cells"], value["cells"], strict=True):
        for key in ("search_id", "removed", "loss", "dense_loss", "layer_forwards"):
            assert mine[key] == theirs[key]
    assert_all_gone(mark, within_s=30)
