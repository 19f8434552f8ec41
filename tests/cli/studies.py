"""Studies that take seconds."""

from __future__ import annotations

from typing import Any

from tests.cli.conftest import World

SEARCHERS = ("one_shot", "greedy", "beam", "random")


def small_study(world: World, *grid: str, **changes: Any) -> list[str]:
    """Return the overrides of a study with the fewest possible processes: one Tune trial at a time, and one replica."""
    keys = {"cluster": "local", "cluster.replicas": 1, "study.concurrency": 1, "tracking": "none"}
    return [*world.overrides(**{**keys, **changes}), *(f"study.grid.{axis}" for axis in grid)]


def study_overrides(world: World, **changes: Any) -> list[str]:
    """Return the overrides of a study whose searches run at the same time; it takes seconds after the start of Ray."""
    at_once = {"cluster.replicas": 2, "study.concurrency": 2}
    return small_study(world, f"searcher=[{','.join(SEARCHERS)}]", "remove=[1,2]", **{**at_once, **changes})
