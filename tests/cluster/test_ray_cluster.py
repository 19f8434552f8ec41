"""A process joins a cluster once, on a thread, and leaves it at the end."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest
import ray

from raysearch.cluster import watch as watch_module
from raysearch.cluster.ray_cluster import RayCluster, this_node
from raysearch.errors import EvaluationError, UserError
from tests.cluster.simulated_ray import SimulatedRay
from tests.sentences import Sentences


def test_a_process_that_is_in_ray_stays_there(simulated_ray: SimulatedRay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    with RayCluster(None, 2) as cluster:
        cluster.wait()
        assert cluster.spans_machines, "nobody knows"
        cluster.check()
    assert simulated_ray.starts == []
    assert simulated_ray.shutdowns == 0


def test_a_cluster_is_left_once(simulated_ray: SimulatedRay) -> None:
    with RayCluster(None, 2) as cluster:
        cluster.wait()
        assert not cluster.spans_machines
        assert simulated_ray.shutdowns == 0
    cluster.close()
    assert simulated_ray.shutdowns == 1


def test_ray_starts_while_other_work_is_done_and_its_thread_lives_until_it_is_left(
    simulated_ray: SimulatedRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_working = threading.Event()
    is_starting = threading.Event()
    threads: list[set[str]] = []

    def start(**_: object) -> None:
        is_starting.set()
        assert is_working.wait(10), "other work is done at the same time"

    def shutdown() -> None:
        threads.append({thread.name for thread in threading.enumerate()})

    monkeypatch.setattr(ray, "init", start)
    monkeypatch.setattr(ray, "shutdown", shutdown)
    with RayCluster(None, 1) as cluster:
        assert is_starting.wait(10)
        cluster.check()  # it does not wait
        is_working.set()
        assert cluster.when_joined(lambda: "a fleet").result(10) == "a fleet"
    (at_shutdown,) = threads
    assert "ray" in at_shutdown, "Linux would have killed Ray's processes with their thread"


def test_an_error_of_joining_is_raised_to_all_who_wait(simulated_ray: SimulatedRay, sentences: Sentences) -> None:
    simulated_ray.errors = [RuntimeError("no room")]
    with RayCluster(None, 1) as cluster:
        with sentences.refused(UserError):
            cluster.wait()
        with sentences.refused(UserError):
            cluster.when_joined(lambda: None).result(10)
        cluster.check()
    assert len(simulated_ray.starts) == 1
    assert simulated_ray.shutdowns == 0


def test_an_error_of_a_function_is_its_own(simulated_ray: SimulatedRay, sentences: Sentences) -> None:
    def fail() -> None:
        raise UserError("no room")

    with RayCluster(None, 1) as cluster:
        with sentences.refused(UserError):
            cluster.when_joined(fail).result(10)
        assert cluster.when_joined(lambda: 1).result(10) == 1
    assert simulated_ray.shutdowns == 1


def test_a_cluster_is_left_if_the_body_is_interrupted_before_it_is_joined(simulated_ray: SimulatedRay) -> None:
    with pytest.raises(KeyboardInterrupt), RayCluster(None, 1):
        raise KeyboardInterrupt
    assert simulated_ray.shutdowns == 1


def test_the_death_of_ray_is_raised(
    simulated_ray: SimulatedRay, monkeypatch: pytest.MonkeyPatch, sentences: Sentences
) -> None:
    monkeypatch.setattr(watch_module, "_LOOK_S", 0.0)
    with RayCluster(None, 1) as cluster:
        cluster.wait()
        cluster.check()
        assert not cluster.has_died
        simulated_ray.processes.dead = "Ray's raylet on this machine"
        with sentences.refused(EvaluationError):
            cluster.check()
        assert cluster.has_died


def test_the_handler_of_sigterm_stays(simulated_ray: SimulatedRay, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray replaces it in the main thread."""

    def start(**_: object) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def handle(*_: Any) -> None: ...

    monkeypatch.setattr(ray, "init", start)
    before = signal.signal(signal.SIGTERM, handle)
    try:
        with RayCluster(None, 1) as cluster:
            cluster.wait()
            assert signal.getsignal(signal.SIGTERM) is handle
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_node_has_a_resource_that_no_other_node_has(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        {"NodeID": name, "Resources": {"CPU": 2.0, "node:__internal_head__": 1.0, f"node:10.0.0.{name}": 1.0}}
        for name in ("1", "2")
    ]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: type("Context", (), {"get_node_id": lambda _: "2"})())
    assert this_node() == "node:10.0.0.2"
