"""Joining and leaving Ray; every failure is one clear message."""

from __future__ import annotations

import re
import signal
import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from raysearch.cluster import connection
from raysearch.errors import EvaluationError, UserError


@pytest.fixture(autouse=True)
def _outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test is in a cluster at its start, even if an earlier test has started a shared Ray."""
    monkeypatch.setattr(ray, "is_initialized", lambda: False)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options of each start of Ray; Ray does not start."""
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(ray, "init", lambda **options: calls.append(options))
    return calls


@pytest.fixture
def shutdowns(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """An item for each time that Ray was shut down."""
    calls: list[bool] = []
    monkeypatch.setattr(ray, "shutdown", lambda: calls.append(True))
    return calls


@pytest.fixture
def nobody() -> str:
    """An address at which no process listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def test_a_process_that_is_in_ray_stays_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("it is started again"))
    monkeypatch.setattr(ray, "shutdown", lambda: pytest.fail("it is ended"))
    connection.join_ray(None, 2)()


def test_a_local_ray_has_only_the_cpus_that_replicas_need(started: list[dict[str, Any]], shutdowns: list[bool]) -> None:
    """Ray starts a process for each CPU and keeps it."""
    leave = connection.join_ray(None, 99.5)
    assert shutdowns == []
    leave()
    assert shutdowns == [True]
    connection.join_ray(None, 0)
    assert [options["num_cpus"] for options in started] == [100, 1] and started[0]["address"] == "local"


@pytest.mark.usefixtures("one_ray")
def test_a_local_ray_has_no_processes_that_it_does_not_need() -> None:
    assert vars(ray._private.worker)["_global_node"].all_processes.keys() == {"gcs_server", "raylet"}


def test_a_failed_start_is_one_sentence_also_in_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(**_: object) -> None:
        raise RuntimeError("no room\nat all")

    monkeypatch.setattr(ray, "init", fails)
    with pytest.raises(UserError, match=r"Ray does not start on this machine \(no room\); .*cluster=inline"):
        connection.join_ray(None, 1)
    with (
        pytest.raises(UserError, match=r"Ray does not start on this machine \(no room\)"),
        connection.joining_ray(None, 1, _Fleet) as joined,
    ):
        joined()


def test_a_start_that_takes_too_long_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[int] = []

    def is_slow(**_: object) -> None:
        starts.append(len(starts))
        if len(starts) < n_needed:
            raise Exception("The current node timed out during startup. This could happen …")

    monkeypatch.setattr(ray, "init", is_slow)
    n_needed = 2
    with pytest.warns(UserWarning, match="Ray did not start in 30 s; it is started again"):
        connection.join_ray(None, 1)
    assert len(starts) == 2
    n_needed = 9
    with (
        pytest.warns(UserWarning, match="started again"),
        pytest.raises(UserError, match="timed out during startup.*less busy, or use cluster=inline"),
    ):
        connection.join_ray(None, 1)
    assert len(starts) == 5


def test_an_address_where_no_process_listens_is_one_sentence(nobody: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", nobody)  # the address of auto
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    for address in (nobody, f"ray://{nobody}", "auto"):
        with pytest.raises(UserError, match=f"cluster.address={address} .*leads to no Ray cluster .*=token if it has"):
            connection.join_ray(address, 1)


def test_a_client_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"needs Ray's client; install it with: pip install 'ray\[client\]'"):
        connection.join_ray("ray://head:10001", 1)


def test_a_connection_of_rays_client_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    def aborts(**options: object) -> None:
        calls.append(options["address"])
        raise ConnectionAbortedError("it did not start")

    monkeypatch.setattr(ray, "init", aborts)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        address = f"ray://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(UserError, match="leads to no Ray cluster .it did not start."):
            connection.join_ray(address, 1)
    assert calls == [address] * 4


class _Fleet:
    is_closed = False

    def close(self) -> None:
        self.is_closed = True


def test_ray_starts_while_other_work_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    working = threading.Event()
    starting = threading.Event()
    stayed: list[bool] = []

    def starts(**_: object) -> None:
        starting.set()
        assert working.wait(10), "other work is done at the same time"

    monkeypatch.setattr(ray, "init", starts)
    monkeypatch.setattr(
        ray, "shutdown", lambda: stayed.append("ray" in {thread.name for thread in threading.enumerate()})
    )
    with connection.joining_ray(None, 1, _Fleet) as joined:
        assert starting.wait(10)
        working.set()
        fleet, leave, _ = joined()
    leave()
    assert fleet.is_closed and stayed == [True], "Linux would have killed Ray's processes with their thread"


@pytest.mark.parametrize("error", [UserError("the weights are damaged"), KeyboardInterrupt()])
def test_ray_is_left_if_the_body_of_the_context_fails(
    error: BaseException, started: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed_at_shutdown: list[bool] = []
    fleet = _Fleet()
    monkeypatch.setattr(ray, "shutdown", lambda: closed_at_shutdown.append(fleet.is_closed))
    with pytest.raises(type(error)) as raised, connection.joining_ray(None, 1, lambda: fleet):
        raise error
    assert raised.value is error and len(started) == 1 and closed_at_shutdown == [True]


def test_ray_is_left_if_no_fleet_can_be_made(started: list[dict[str, Any]], shutdowns: list[bool]) -> None:
    def make_fleet() -> _Fleet:
        raise UserError("no room")

    with pytest.raises(UserError, match="no room"), connection.joining_ray(None, 1, make_fleet) as joined:
        joined()
    assert len(started) == 1 and shutdowns == [True]


def test_the_handler_of_sigterm_is_restored(started: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "init", lambda **_: signal.signal(signal.SIGTERM, signal.SIG_IGN))
    before = signal.signal(signal.SIGTERM, handler := lambda *_: None)
    try:
        connection.join_ray(None, 1)
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_node_has_a_resource_that_no_other_node_has(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        {"NodeID": name, "Resources": {"CPU": 2.0, "node:__internal_head__": 1.0, f"node:10.0.0.{name}": 1.0}}
        for name in ("1", "2")
    ]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: type("Context", (), {"get_node_id": lambda _: "2"})())
    assert connection.this_node() == "node:10.0.0.2"


def test_the_death_of_ray_is_raised_and_its_fleet_is_not_closed(
    started: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    died: list[str | None] = [None]
    monkeypatch.setattr(connection, "_find_dead", lambda: died[0])
    monkeypatch.setattr(connection, "_WATCH_S", 0.01)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    fleet = _Fleet()
    with connection.joining_ray(None, 1, lambda: fleet) as joined:
        _, leave, check = joined()
        check()
        died[0] = "Ray's raylet on this machine"
        with pytest.raises(EvaluationError, match="raylet on this machine has died, .* the same command goes on"):
            while True:
                check()
        leave()
    assert not fleet.is_closed, "it would not answer"


def test_a_death_is_raised_within_an_inner_context_of_a_connection_that_did_not_join(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "_WATCH_S", 0.01)
    monkeypatch.setattr(connection, "_STUCK_S", 60.0)
    has_died = threading.Event()

    def check() -> None:
        if has_died.is_set():
            raise EvaluationError("Ray has died")

    inner = connection.Connection(None, is_ours=False)
    with connection.raising(check, pytest.fail), connection.raising(inner.check, pytest.fail):
        has_died.set()
        with pytest.raises(EvaluationError, match="Ray has died"):
            time.sleep(5)
        has_died.clear()


def test_the_head_of_a_cluster_is_dead_after_a_while_without_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as head:
        head.bind(("127.0.0.1", 0))
        head.listen()
        address = f"127.0.0.1:{head.getsockname()[1]}"
        monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address=address))
        find_dead_head = connection._head_watch()
        assert find_dead_head() is None
    monkeypatch.setattr(connection, "_SILENT_S", 40.0)
    assert find_dead_head() is None, "it may come back"
    monkeypatch.setattr(connection, "_SILENT_S", 0.0)
    assert find_dead_head() == f"the head of the Ray cluster at {address}"


def test_the_token_of_local_clusters_is_made_once_and_only_its_owner_can_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    connection._make_token()
    assert not (tmp_path / ".ray").exists(), "tokens are disabled in tests"
    monkeypatch.delenv("RAY_AUTH_MODE")
    connection._make_token()
    token = tmp_path / ".ray" / "auth_token"
    content = token.read_text()
    assert re.fullmatch("[0-9a-f]{64}", content) and token.stat().st_mode & 0o777 == 0o600
    connection._make_token()
    assert token.read_text() == content and [*token.parent.iterdir()] == [token]
    monkeypatch.setenv("HOME", str(tmp_path / "other"))
    monkeypatch.setenv("RAY_AUTH_TOKEN", "given")
    connection._make_token()
    assert not (tmp_path / "other").exists()
