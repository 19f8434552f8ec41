"""A study that was killed goes on where it was, by the same command."""

from __future__ import annotations

import os
import signal
import uuid
from pathlib import Path

import pytest

from tests.cli.conftest import World
from tests.cli.found import evaluations, found
from tests.cli.studies import study_words
from tests.faults.injection import assert_all_gone, do, kill_at, ray_process, start, wait_for_rows

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


@pytest.mark.parametrize("part", ["raylet", "gcs_server"])
def test_ray_itself_is_killed_under_a_study(world: World, here: Path, part: str) -> None:
    words = ["study", *study_words(world, **{"data.shard_samples": 1})]
    command = start(*words)
    pid = ray_process(command, part)
    wait_for_rows(command, "mlruns", 40)
    os.kill(pid, signal.SIGKILL)
    outcome = command.finish()
    assert outcome.code == 1, outcome
    assert "died, and the replicas with it; what they had evaluated is in the ledger, and the same" in outcome.err
    assert "Traceback" not in outcome.err
    again = found(do(*words, "--json"))
    assert all(cell["removed"] for cell in again["cells"])
