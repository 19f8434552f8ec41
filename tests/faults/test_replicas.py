"""Replicas that die, hang or keep others waiting change no number."""

from __future__ import annotations

import functools
import os
import signal
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import ray

from raysearch.cluster.actor import Recipe, installed_versions
from raysearch.cluster.fleet import Fleet, Needs
from raysearch.cluster.pool import RayPool, Replicas
from raysearch.cluster.scheduler import Demand, TimeoutPolicy
from raysearch.core.mask import Mask
from raysearch.evaluation.inline_pool import InlinePool
from raysearch.evaluation.replica import Replica
from raysearch.evaluation.unit import MaskUnit, UnitResult
from raysearch.models.shared_weights import attach, detach
from raysearch.models.stack import LayerStack
from tests.cli.answers import evaluations, json_answer, same
from tests.cli.conftest import World
from tests.faults.injection import BEAM, SHARDS, do, kill_ray, ray_process, start, wait_for_rows
from tests.processes import descendants, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.faults]

MASKS = tuple(Mask.of(*layers) for layers in [(), (0,), (1,), (2,), (1, 2), (0, 3)])


def replicas_of(driver: int) -> set[int]:
    """The processes in which a command's replicas are."""
    return {process for process, name in descendants(driver).items() if "ReplicaActor" in name}


@pytest.mark.parametrize(("ending", "times"), [(signal.SIGKILL, 2), (signal.SIGSTOP, 1)])
def test_every_replica_of_a_search_is_ended(
    world: World, undisturbed: dict[str, Any], ending: signal.Signals, times: int
) -> None:
    on_ray = {"cluster": "local", "cluster.replicas": 2, "cluster.unit_timeout_s": 3, "store": "ended"}
    command = start("search", *world.search(**{**BEAM, **on_ray}), "--json")
    ended: set[int] = set()

    def two_replicas() -> set[int]:
        new = replicas_of(command.pid) - ended
        return new if len(new) >= 2 else set()

    moments = np.random.default_rng([times, 1]).integers(1, SHARDS * 16, size=times)
    for moment in sorted(moments.tolist()):
        wait_for_rows(command, "ended", moment)
        for replica in (new := command.until(two_replicas, every_s=0.01)):
            os.kill(replica, ending)
        ended |= new
    result = json_answer(command.finish())
    assert same(result, undisturbed)
    assert evaluations("ended") == evaluations("undisturbed")
    assert len(ended) == 2 * times
    assert result["pool"]["units_redone"] >= 1
    wait_for(lambda: not any(map(psutil.pid_exists, ended)), 20, lambda: "they still hold memory of their device")


class SleepyReplica(Replica):
    """Sleeps for ever at the second shard, unless another has."""

    folder: Path

    def evaluate(self, unit: Any) -> Any:
        if unit.shard == 1 and not (self.folder / "slept").exists():
            (self.folder / "slept").touch()
            time.sleep(3600)
        return super().evaluate(unit)


def make(kind: type[Replica], folder: Path, calibration: Any, detached: Any) -> Replica:
    """A replica in an actor."""
    replica = kind(LayerStack(attach(*detached)), [calibration])
    replica.folder = folder  # type: ignore[attr-defined]
    return replica


@pytest.fixture(scope="module", autouse=True)
def _ray() -> Any:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture
def units(calibration: Any) -> list[MaskUnit]:
    return [MaskUnit(calibration.fingerprint, shard, MASKS) for shard in range(calibration.n_shards)]


@pytest.fixture
def recipe(model: Any, calibration: Any, tmp_path: Path) -> Any:
    """Gives what replicas of a kind are made by."""
    detached = detach(model)

    def recipe_for(kind: type[Replica]) -> list[Any]:
        return [ray.put(Recipe(functools.partial(make, kind, tmp_path, calibration), detached, installed_versions()))]

    return recipe_for


def answers(pool: Any, units: list[MaskUnit]) -> dict[Any, bytes]:
    """Every loss, as bytes."""
    done = [answer for answer in pool.run(units) if answer is not None]
    return {(unit.shard, mask): rows.tobytes() for unit, result in done for mask, rows in result.values.items()}


def test_a_replica_that_sleeps_for_ever_is_replaced(recipe: Any, make_replica: Any, units: list[MaskUnit]) -> None:
    fleet = Fleet(1, 1, Needs(cpus=1, gpus=0), idle_s=60)
    replicas = Replicas(fleet, recipe(SleepyReplica), 1, unit_timeout_s=1.0)
    with closing(fleet), closing(RayPool(replicas)) as pool:
        assert answers(pool, units) == answers(InlinePool(make_replica), units)
        assert pool.stats.units_redone == 1


def test_a_replica_that_loads_for_ever_is_replaced_and_one_without_a_place_is_not(
    units: list[MaskUnit], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    slept = tmp_path / "slept"

    class Echo:
        """Answers without a model. As all that is made in a test, it goes to actors by value: they import no torch."""

        def evaluate(self, unit: MaskUnit) -> UnitResult:
            return UnitResult({mask: np.zeros(1) for mask in unit.masks}, 1, 1, 1, None, 0.3)

    def make_at_second_try(_: Any) -> Any:
        """Loads for ever, unless another has."""
        if not slept.exists():
            slept.touch()
            time.sleep(3600)
        return Echo()

    monkeypatch.setattr(TimeoutPolicy, "load_s", 12.0)
    fleet = Fleet(2, 2, Needs(cpus=2, gpus=0), idle_s=60)
    recipe = [ray.put(Recipe(make_at_second_try, None, installed_versions()))]
    with closing(fleet), closing(RayPool(Replicas(fleet, recipe, 1))) as pool:
        actors_before = fleet.sync("test", Demand(2))
        assert answers(pool, units).keys() == {(unit.shard, mask) for unit in units for mask in unit.masks}
        assert pool.stats.waiting_seconds > 12.0
        assert pool.stats.units_redone == 0
        assert len(actors_before.keys() & fleet.sync("test", Demand(2)).keys()) == 1


def test_ray_itself_is_killed_under_an_assessment(world: World, cwd: Path) -> None:
    assert do("search", *world.search(searcher="one_shot")).code == 0
    n_evaluations = len(evaluations("mlruns"))
    texts = [
        f"assess.texts.t{samples}='data=file data.path={world.text} data.samples={samples} data.sampling=sequential'"
        for samples in range(2000, 1200, -100)  # so that much is left when the first rows are there
    ]
    how = ["assess=none", *texts, "assess.seq_len=2", "assess.probe.enabled=false"]
    command = start("assess", "latest", *how, "cluster=local", "cluster.replicas=1")
    pid = ray_process(command, "raylet")
    wait_for_rows(command, "mlruns", n_evaluations + 1)
    kill_ray(command, pid)
    assert do("assess", "latest", *how, "cluster=inline").code == 0
