"""A study that takes seconds, for tests of what becomes of one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import World, finish, spawn
from tests.cli.found import found

SEARCHERS = ("one_shot", "greedy", "beam", "random")


def small_study(world: World, *grid: str, **changes: Any) -> list[str]:
    """The words of a study with as few processes as there can be: one of Tune's, and one replica."""
    keys = {"cluster": "local", "cluster.replicas": 1, "study.concurrency": 1, "tracking": "none"}
    return [*world.words(**{**keys, **changes}), *(f"study.grid.{axis}" for axis in grid)]


def study_words(world: World, **changes: Any) -> list[str]:
    """The words of a study whose searches run at the same time; it takes seconds, but for the start of Ray."""
    at_once = {"cluster.replicas": 2, "study.concurrency": 2}
    return small_study(world, f"searcher=[{','.join(SEARCHERS)}]", "remove=[1,2]", **{**at_once, **changes})


@pytest.fixture(scope="module")
def done(world: World, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """A study that nothing happened to: what it told, and its folder."""
    folder = tmp_path_factory.mktemp("study")
    before = Path.cwd()
    os.chdir(folder)
    try:
        return found(finish(spawn("study", *study_words(world), "--json"))), folder
    finally:
        os.chdir(before)
