"""Ray is started on this machine, or a cluster is joined; every failure is one clear message."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
import ray

from raysearch.cluster import join as join_module
from raysearch.cluster.join import join
from raysearch.errors import UserError
from tests.cluster.simulated_ray import SimulatedRay
from tests.sentences import Sentences


def test_a_local_ray_has_only_the_cpus_that_replicas_need(simulated_ray: SimulatedRay) -> None:
    """Ray starts a process for each CPU and keeps it."""
    join(None, 99.5)
    join(None, 0)
    assert [options["num_cpus"] for options in simulated_ray.starts] == [100, 1]
    assert [options["address"] for options in simulated_ray.starts] == ["local", "local"]


@pytest.mark.usefixtures("one_ray")
def test_a_local_ray_has_no_processes_that_it_does_not_need() -> None:
    assert vars(ray._private.worker)["_global_node"].all_processes.keys() == {"gcs_server", "raylet"}


def test_a_failed_start_is_one_sentence(simulated_ray: SimulatedRay, sentences: Sentences) -> None:
    simulated_ray.errors = [RuntimeError("no room\nat all")]
    with sentences.refused(UserError):
        join(None, 1)


def test_a_start_that_takes_too_long_is_tried_again(simulated_ray: SimulatedRay, sentences: Sentences) -> None:
    too_slow = Exception("The current node timed out during startup. This could happen …")
    simulated_ray.errors = [too_slow]
    with pytest.warns(UserWarning) as caught:
        join(None, 1)
    sentences.check(str(caught[0].message))
    assert len(simulated_ray.starts) == 2
    simulated_ray.errors = [too_slow] * 9
    with pytest.warns(UserWarning), sentences.refused(UserError):
        join(None, 1)
    assert len(simulated_ray.starts) == 2 + 3


def test_an_address_where_no_process_listens_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, sentences: Sentences
) -> None:
    with socket.socket() as closed_later:
        closed_later.bind(("127.0.0.1", 0))
        silent = f"127.0.0.1:{closed_later.getsockname()[1]}"
    sentences.hide(silent, "silent")
    monkeypatch.setenv("RAY_ADDRESS", silent)  # the address of auto
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    for address in (silent, f"ray://{silent}", "auto"):
        with sentences.refused(UserError, case=address):
            join(address, 1)


def test_a_client_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, sentences: Sentences) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with sentences.refused(UserError):
        join("ray://head:10001", 1)


def test_a_connection_of_rays_client_is_tried_again(simulated_ray: SimulatedRay, sentences: Sentences) -> None:
    simulated_ray.errors = [ConnectionAbortedError("it did not start")] * 9
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        address = f"ray://127.0.0.1:{server.getsockname()[1]}"
        with sentences.refused(UserError):
            join(address, 1)
    assert [options["address"] for options in simulated_ray.starts] == [address] * 4


def test_the_token_of_local_clusters_is_made_once_and_only_its_owner_can_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    join_module._make_token()
    assert not (tmp_path / ".ray").exists(), "tokens are disabled in tests"
    monkeypatch.delenv("RAY_AUTH_MODE")
    join_module._make_token()
    token = tmp_path / ".ray" / "auth_token"
    content = token.read_text()
    assert re.fullmatch("[0-9a-f]{64}", content)
    assert token.stat().st_mode & 0o777 == 0o600
    join_module._make_token()
    assert token.read_text() == content
    assert [*token.parent.iterdir()] == [token]
    monkeypatch.setenv("HOME", str(tmp_path / "other"))
    monkeypatch.setenv("RAY_AUTH_TOKEN", "given")
    join_module._make_token()
    assert not (tmp_path / "other").exists()
