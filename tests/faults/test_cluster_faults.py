"""Nodes come, vanish and are cut off while a search runs; it finds the same to the last bit."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

import raysearch
from raysearch.cluster.actor import Recipe, installed_versions
from raysearch.cluster.fleet import Needs, shared_fleet
from raysearch.cluster.pool import RayPool, Replicas
from raysearch.core.mask import Mask
from raysearch.evaluation.unit import MaskUnit, UnitResult
from raysearch.searching.events import RoundEnded, RoundProgressed
from raysearch.searching.observer import Observer
from raysearch.searching.result import in_brief
from tests.cli.answers import evaluations, json_answer, same
from tests.cli.conftest import Run, World
from tests.faults.clusters import ROOT, RayCluster, free_port, listens, start
from tests.faults.injection import do, enter
from tests.processes import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.faults]

SHARDS = 24
MASKS = 1 + 5 + 4
#: Two rounds, of which every shard is a moment for something to happen.
LONG = {"data.samples": SHARDS, "data.shard_samples": 1, "searcher": "greedy", "remove": 2, "screening": "off"}


def on(address: str, **changes: object) -> dict[str, object]:
    """The keys of a search on a cluster."""
    keys = {"address": address, "replicas": "{min:1,max:3}", "gpus_per_replica": 0, "idle_s": 60}
    return {"cluster": "elastic"} | {f"cluster.{key}": value for key, value in (keys | changes).items()}


@pytest.fixture
def undisturbed(run: Run, world: World) -> dict[str, Any]:
    """What is found when nothing happens."""
    return json_answer(run("search", *world.search(**LONG), "--json", "store=undisturbed"))


def assert_same(result: dict[str, Any], undisturbed: dict[str, Any]) -> None:
    """The same masks and losses, nothing of them recorded twice."""
    assert same(result, undisturbed)
    assert evaluations("disturbed") == evaluations("undisturbed")
    assert len(evaluations("disturbed")) == MASKS * SHARDS


def test_all_nodes_vanish_and_another_comes(world: World, undisturbed: dict[str, Any]) -> None:
    with RayCluster() as ray_cluster:
        ray_cluster.start_head(0)
        nodes = [ray_cluster.add(1, doomed=True) for _ in range(2)]
        search = start("search", *world.search(**LONG, **on(ray_cluster.address)), "--json", "store=disturbed")
        search.until(lambda: all(node.stuck.exists() for node in nodes))
        for node in nodes:
            node.kill()
        ray_cluster.add(1)
        result = json_answer(search.finish())
    assert_same(result, undisturbed)
    assert result["pool"]["units_redone"] == 2
    assert [replica["units"] for replica in result["pool"]["replicas"][:2]] == [2, 2]
    assert len(result["pool"]["replicas"]) == 3


class Watcher(Observer):
    """Lets a round go on when all nodes have come, and the next one begin when they have gone."""

    def __init__(self) -> None:
        self.nodes: list[int] = []  # each number that there has been, in turn
        self.grown = False

    def on_round_progressed(self, event: RoundProgressed) -> None:
        if event.progress.layer_forwards and not self.grown:
            wait_for(lambda: self.look() == 3, 60, lambda: self.nodes)
            self.grown = True

    def on_round_ended(self, event: RoundEnded) -> None:
        wait_for(lambda: self.look() == 1, 60, lambda: self.nodes)
        self.grown = False

    def look(self) -> int:
        nodes = sum(node["Alive"] for node in ray.nodes())
        if self.nodes[-1:] != [nodes]:
            self.nodes.append(nodes)
        return nodes


def test_nodes_come_with_the_work_and_leave_when_it_is_done(world: World, undisturbed: dict[str, Any]) -> None:
    watcher = Watcher()
    with RayCluster() as ray_cluster:
        ray_cluster.start_autoscaling_head(1, most=2, idle_s=2)
        keys = on(ray_cluster.address, idle_s=1)
        result = raysearch.search(*world.search(**LONG, **keys), "store=disturbed", observer=watcher).result
    assert_same(in_brief(result), undisturbed)
    assert [nodes for nodes in watcher.nodes if nodes != 2][-4:] == [3, 1, 3, 1], "they come for each round"
    assert result.work.pool["units_redone"] == 0


@pytest.fixture
def hosts() -> Iterator[tuple[str, str]]:
    """Two network namespaces with a wire between: 10.77.0.1 and 10.77.0.2."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and iproute2")
    names = f"rs{os.getpid()}a", f"rs{os.getpid()}b"

    def ip(*arguments: str, host: str | None = None) -> None:
        within = ["ip", "netns", "exec", host] if host else []
        subprocess.run([*within, "ip", *arguments], check=True, capture_output=True)

    with ExitStack() as ending:
        for name in names:
            ip("netns", "add", name)
            ending.callback(ip, "netns", "del", name)
            ip("link", "set", "lo", "up", host=name)
        ip("link", "add", names[0], "type", "veth", "peer", "name", names[1])
        for number, name in enumerate(names, 1):
            ip("link", "set", name, "netns", name)
            ip("address", "add", f"10.77.0.{number}/24", "dev", name, host=name)
            ip("link", "set", name, "up", host=name)
        yield names


def test_the_wire_to_a_host_is_cut(world: World, undisturbed: dict[str, Any], hosts: tuple[str, str]) -> None:
    enter_first, enter_second = (partial(enter, Path("/run/netns", name)) for name in hosts)
    with RayCluster("10.77.0.1", [enter_first]) as ray_cluster:
        ray_cluster.start_head(0)
        cut_off = ray_cluster.add(1, True, "10.77.0.2", [enter_second])
        keys = on(ray_cluster.address)
        search = start("search", *world.search(**LONG, **keys), "--json", "store=disturbed", first=[enter_first])
        search.until(cut_off.stuck.exists)
        subprocess.run(["ip", "netns", "exec", hosts[1], "ip", "link", "set", hosts[1], "down"], check=True)
        ray_cluster.add(1)
        result = json_answer(search.finish())
    assert_same(result, undisturbed)
    assert result["pool"]["units_redone"] == 1


@contextmanager
def served_from_outside() -> Iterator[str]:
    """The address of a cluster on which the first process that is to serve a client does not start."""
    pytest.importorskip("grpc", reason="needs ray[client]")
    port = free_port()
    with RayCluster() as ray_cluster:
        (ray_cluster.folder / "sitecustomize.py").write_text(
            """
import os, pathlib, sys
if any("specific-server" in word for word in sys.orig_argv):
    failed = pathlib.Path(__file__).with_name("failed")
    if not failed.exists():
        failed.touch()
        os._exit(1)
"""
        )
        path = f"{ray_cluster.folder}{os.pathsep}{ROOT}"
        paths = {"PYTHONPATH": path, "RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S": "15"}
        ray_cluster.start_head(1, f"--ray-client-server-port={port}", **paths)
        wait_for(lambda: listens(port), 60)  # ray start does not
        yield f"ray://127.0.0.1:{port}"


def test_a_search_from_outside_of_the_cluster(run: Run, world: World, undisturbed: dict[str, Any]) -> None:
    with served_from_outside() as address:
        arguments = ["search", *world.search(**LONG, **on(address)), "--json", "store=disturbed"]
        result = json_answer(do(*arguments, RAY_CLIENT_RECONNECT_GRACE_PERIOD="15"))
        refused = run("study", *world.search(**on(address), data__samples=8))
    assert_same(result, undisturbed)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith(f"error: cluster.address={address} cannot run a study"), refused.err
    assert refused.err.count("\n") == 1


def test_what_looks_after_the_replicas_of_a_study_is_killed(tmp_path: Path) -> None:
    stuck = tmp_path / "stuck"

    class Echo:
        """Answers without a model; at one shard it gets stuck, unless another has been."""

        def evaluate(self, unit: MaskUnit) -> UnitResult:
            if unit.shard == 5 and not stuck.exists():
                stuck.touch()
                time.sleep(3600)
            return UnitResult({mask: np.zeros(1) for mask in unit.masks}, 1, 1, 1, None, 0.3)

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        fleet = shared_fleet(2, 2, Needs(cpus=1, gpus=0), idle_s=60)
        recipe = [ray.put(Recipe(lambda _: Echo(), None, installed_versions()))]  # type: ignore[arg-type, return-value]
        pool = RayPool(Replicas(fleet, recipe, 2))
        units = [MaskUnit("a calibration", shard, (Mask.of(1),)) for shard in range(16)]
        answers, received = pool.run(units), list[Any]()
        while not stuck.exists():
            received.append(next(answers))
        ray.kill(fleet._actor, no_restart=False)
        received = [answer[0] for answer in [*received, *answers] if answer is not None]
        assert sorted(received, key=units.index) == units
        assert pool.stats.units_redone in (1, 2), "what its replicas had in hand when they died with it"
        pool.close()
        fleet.close()
    finally:
        ray.shutdown()
