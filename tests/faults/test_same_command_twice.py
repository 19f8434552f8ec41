"""A search or a study that runs already is left alone, and is free again as soon as its process is gone."""

from __future__ import annotations

import os
import platform
import signal
from pathlib import Path

import pytest

from tests.cli.answers import json_answer
from tests.cli.conftest import World
from tests.faults.injection import refused, start, wait_for_rows

pytestmark = [pytest.mark.slow, pytest.mark.faults]


def test_a_search_that_runs_is_left_alone(cwd: Path, command: list[str]) -> None:
    first = start(*command)
    wait_for_rows(first, "mlruns", 1)
    os.kill(first.pid, signal.SIGSTOP)  # so that it does not end meanwhile
    second, resumed = start(*command), start("resume", "latest", "--json")
    for late in second, resumed:
        refused(
            late.finish(),
            "SEARCH=beam-m3-",
            f" is already being run by process {first.pid} on {platform.node()}; wait for that to end",
        )
    os.kill(first.pid, signal.SIGCONT)
    json_answer(first.finish())


def test_a_study_that_runs_is_left_alone(cwd: Path, world: World) -> None:
    arguments = ["study", *world.overrides(cluster="local", tracking="none"), "cluster.replicas=1", "--json"]
    arguments += ["study.grid.searcher=[one_shot,greedy]", "study.grid.remove=[1,2]"]
    first = start(*arguments)
    # It says whose it is.
    first.until(lambda: any(path.read_text() for path in Path("mlruns").glob("ledger.db.*.lock")))
    os.kill(first.pid, signal.SIGSTOP)
    refused(
        start(*arguments).finish(),
        "STUDY=",
        f" is already being run by process {first.pid} on {platform.node()}; wait for that to end",
    )
    os.killpg(first.pid, signal.SIGKILL)
    first.kill()
    result = json_answer(start(*arguments).finish())
    assert [cell["state"] for cell in result["cells"]] == ["finished"] * 4
