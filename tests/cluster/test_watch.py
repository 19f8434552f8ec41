"""A process of Ray has died if it refuses a connection, and a cluster's head if it is unreachable for a while."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from raysearch.cluster import watch as watch_module
from raysearch.cluster.watch import ClusterHead, DeathWatch, Endpoint, LocalRay
from raysearch.errors import EvaluationError
from tests.cluster.simulated_ray import SimulatedProcesses
from tests.processes import wait_for
from tests.sentences import Sentences


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """A process that listens."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server


def endpoint(name: str, server: socket.socket) -> Endpoint:
    host, port = server.getsockname()
    return Endpoint(name, host, port)


def test_a_process_of_this_machine_that_refuses_a_connection_has_died(server: socket.socket) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        local_ray = LocalRay([endpoint("Ray's raylet", server), endpoint("Ray's GCS", other)])
        assert local_ray.find_dead() is None
    assert local_ray.find_dead() == "Ray's GCS"
    server.close()
    assert local_ray.find_dead() == "Ray's raylet"


def test_a_process_of_this_machine_that_is_too_busy_to_answer_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    def times_out(*_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", times_out)
    assert LocalRay([Endpoint("Ray's raylet", "127.0.0.1", 1)]).find_dead() is None


def test_the_head_of_a_cluster_is_dead_after_a_while_without_answers(
    server: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = ClusterHead(endpoint("the head of the Ray cluster", server))
    assert head.find_dead() is None
    server.close()
    assert head.find_dead() is None, "it may come back"
    monkeypatch.setattr(watch_module, "_UNREACHABLE_S", 0.0)
    assert head.find_dead() == "the head of the Ray cluster"


def test_a_death_is_raised_and_stays_known(monkeypatch: pytest.MonkeyPatch, sentences: Sentences) -> None:
    monkeypatch.setattr(watch_module, "_LOOK_S", 0.0)
    processes = SimulatedProcesses()
    watch = DeathWatch(processes)
    watch.check()
    processes.dead = "Ray's raylet on this machine"
    for _ in range(2):
        with sentences.refused(EvaluationError):
            watch.check()
        processes.dead = None
    assert watch.died == "Ray's raylet on this machine"
    watch.stop()


def test_a_thread_finds_a_death_without_any_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "_POLL_S", 0.01)
    processes = SimulatedProcesses()
    watch = DeathWatch(processes)
    processes.dead = "the head of the Ray cluster"
    wait_for(lambda: watch.died is not None, 10)
    watch.stop()


@pytest.mark.usefixtures("one_ray")
def test_the_processes_of_a_real_ray_are_found() -> None:
    local_ray = LocalRay.joined()
    names = [endpoint.name for endpoint in local_ray._endpoints]
    assert names == ["Ray's raylet on this machine", "Ray's GCS on this machine"]
    for endpoint in local_ray._endpoints:
        endpoint.connect()
    ClusterHead.joined()._endpoint.connect()
