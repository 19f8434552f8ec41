"""A study that takes seconds, for tests of what becomes of one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import World, finish, spawn
from tests.cli.found import found

SEARCHERS = ("one_shot", "greedy", "beam", "random")


def study_words(world: World, **changes: Any) -> list[str]:
    """The words of a study that takes seconds, but for the start of Ray."""
    keys = {"cluster": "local", "cluster.replicas": 2, "tracking": "none"}
    axes = [f"study.grid.searcher=[{','.join(SEARCHERS)}]", "study.grid.remove=[1,2]"]
    return [*world.words(**{**keys, **changes}), *axes]


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
