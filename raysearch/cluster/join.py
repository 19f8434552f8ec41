"""Joins a running Ray cluster, or starts one on this machine."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import math
import os
import secrets
import socket
import warnings
from pathlib import Path
from typing import Any

import ray

from raysearch.cluster.ray_internals import disable_signal_handler, silence_messages, without_unused_processes
from raysearch.cluster.watch import ClusterHead, DeathWatch, LocalRay
from raysearch.errors import UserError
from raysearch.text.redaction import redact
from raysearch.text.sentences import first_line

_log = logging.getLogger(__name__)
_ANSWER_S = 30  # how long a cluster may take to answer; Ray tries every ten seconds
_STARTS = 3  # how many times a local Ray is started
_TOO_SLOW = "timed out during startup"  # in Ray's error if its node has not started in 30 s, which is a fixed limit
_CLIENT_ATTEMPTS = 4  # connections of Ray's client: about one of ten server processes hangs at its start


class RayStartError(UserError):
    """Ray cannot be started on this machine.

    Args:
        cause: The cause.
        remedy: What the user can do.
    """

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(f"{cause}; {remedy}")
        self.cause = cause


def join(address: str | None, cpus: float) -> DeathWatch | None:
    """Join a Ray cluster, or start Ray on this machine.

    Linux kills the processes that this starts when the calling thread ends.

    Args:
        address: The address of the cluster; None to start Ray on this machine.
        cpus: How many CPUs a Ray on this machine has; it starts a process for each.

    Returns:
        The watch of the cluster; None for Ray's client, which is not watched.

    Raises:
        UserError: No cluster answers at the address, or none can be started on this machine.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address is None:
        _make_token()
        _start_local(math.ceil(max(1, cpus)))
        _log.info("Ray was started on this machine")
        return DeathWatch(LocalRay.joined())
    _connect(address)
    _log.info("joined the Ray cluster at %s", redact(address))
    return None if address.startswith("ray://") else DeathWatch(ClusterHead.joined())


def _start_local(cpus: int) -> None:
    """Start Ray on this machine; start it again if the machine is too busy for Ray's time limit."""
    for attempt in range(1, _STARTS + 1):
        try:
            with without_unused_processes():
                _init(address="local", num_cpus=cpus, include_dashboard=False)
            return
        except Exception as error:  # Ray has no exception class for this
            is_too_slow = _TOO_SLOW in str(error)
            if is_too_slow and attempt < _STARTS:
                warnings.warn(
                    f"this machine is busy, and Ray did not start in 30 s; it is started again ({attempt + 1} of "
                    f"{_STARTS})",
                    stacklevel=2,
                )
                continue
            remedy = "try again when it is less busy" if is_too_slow else "mend that"
            raise RayStartError(
                f"Ray does not start on this machine ({first_line(error)})",
                f"{remedy}, or use cluster=inline, which needs no Ray",
            ) from error


def _connect(address: str) -> None:
    option = f"cluster.address={address}"
    if address == "auto" and (ray_address := os.environ.get("RAY_ADDRESS")):  # Ray uses it for auto
        address = ray_address
        option = f"{option} (RAY_ADDRESS={ray_address})"
    os.environ.setdefault("RAY_gcs_server_port_wait_time_s", str(_ANSWER_S // 10))
    if address.startswith("ray://") and importlib.util.find_spec("grpc") is None:
        raise UserError(f"{option} needs Ray's client; install it with: pip install 'ray[client]'")
    os.environ.setdefault("RAY_CLIENT_RECONNECT_GRACE_PERIOD", str(_ANSWER_S))
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        if host:  # Ray would try for minutes
            socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
        for _ in range(_CLIENT_ATTEMPTS - 1):
            with contextlib.suppress(ConnectionAbortedError):
                return _init(address=address)
        _init(address=address)
    except (ValueError, OSError, OverflowError, RuntimeError) as error:
        # With `auto` Ray looks for a token, too. At other addresses it does not, and the cluster may need one.
        looks_for_token = address == "auto" or "RAY_AUTH_MODE" in os.environ
        token = "" if looks_for_token else "set RAY_AUTH_MODE=token if it has a token, "
        raise UserError(
            f"{option} leads to no Ray cluster ({first_line(error)}); start one with "
            f"ray start --head, correct the address, {token}or leave it out to use this machine alone"
        ) from error


def _init(**options: Any) -> None:
    """Start or join Ray quietly."""
    silence_messages()
    disable_signal_handler()
    ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)


def _make_token() -> None:
    """Make the token of local clusters if there is none, readable by its owner only; Ray would make a readable one."""
    is_configured = bool({"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys())
    if is_configured or os.environ.get("RAY_AUTH_MODE", "token").lower() != "token":
        return
    token = Path.home() / ".ray" / "auth_token"
    unfinished = token.with_name(f"{token.name}.{os.getpid()}")
    # If it cannot be written, or there is no home folder, Ray reports it.
    with contextlib.suppress(OSError, RuntimeError):
        token.parent.mkdir(parents=True, exist_ok=True)
        if not token.exists():
            unfinished.touch(0o600, exist_ok=False)
            unfinished.write_text(secrets.token_hex(32), encoding="ascii")
            with contextlib.suppress(FileExistsError):  # another process was faster
                os.link(unfinished, token)
            unfinished.unlink()
