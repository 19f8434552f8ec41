"""Joins a Ray cluster that runs already, or starts one on this machine."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import math
import os
import secrets
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, TypeVar

import ray

from raysearch.errors import EvaluationError, UserError, first_line

FleetT = TypeVar("FleetT", bound="_Closable")

_ANSWER_S = 30  # that a cluster may take to answer; Ray itself asks every ten seconds
#: How often it is looked whether Ray lives, and how long a cluster's head may be away; Ray ends this process at 60.
_WATCH_S, _SILENT_S = 1.0, 40.0
_CHECK_S = 0.2  # between looks at a Ray of our own, which take no time: a second after its end it may end this process
_STUCK_S = 10.0  # in which a call of Ray's looks for signals, if it does
_VITAL = {"raylet": "raylet", "gcs_server": "GCS"}  # without which a Ray of our own is lost, in words
#: Ray's processes for autoscaling, the dashboard and the collection of logs, by the methods that start them. They take
#: half of the time that Ray takes to start, are no use to a cluster of our own, and no option of Ray leaves them out.
_UNUSED = ("start_monitor", "start_api_server", "start_log_monitor")
#: How often a Ray of our own is started, and what Ray says where its node has not come up in 30 s, a fixed time.
_STARTS, _TOO_SLOW = 3, "timed out during startup"
_CLIENT_ATTEMPTS = 4  # at getting a process that serves us: about one of ten hangs at its start


class _Closable(Protocol):
    def close(self) -> None: ...


class RayStartError(UserError):
    """Ray cannot be started on this machine."""

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(f"{cause}; {remedy}")
        self.cause = cause


def join_ray(address: str | None, cpus: float) -> Connection:
    """Join the cluster at an address, or start one with just so many CPUs here, unless this process is in one.

    Raises:
        UserError: No cluster answers there, or none can be started here.
    """
    if ray.is_initialized():
        return Connection(None, is_ours=False)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address is None:
        local = {"num_cpus": max(1, math.ceil(cpus)), "include_dashboard": False}  # Ray keeps a process for each
        _make_token()
        _start_own(**local)
    else:
        _connect(address)
    return Connection(_dead if address is None else None if address.startswith("ray://") else _silent())


def _start_own(**options: Any) -> None:
    """Start Ray on this machine, and start it again where the machine is too busy for the time that Ray gives it."""
    for attempt in range(1, _STARTS + 1):
        try:
            with _without_unused():
                _start(address="local", **options)
            return
        except Exception as error:  # Ray has no class of its own for that
            if _TOO_SLOW not in str(error):
                remedy = "mend that, or use cluster=inline, which needs no Ray"
            elif attempt < _STARTS:
                warnings.warn(
                    f"this machine is busy, and Ray did not start in 30 s; it is started again ({attempt + 1} of "
                    f"{_STARTS})",
                    stacklevel=2,
                )
                continue
            else:
                remedy = "try again when it is less busy, or use cluster=inline, which needs no Ray"
            raise RayStartError(f"Ray does not start on this machine ({first_line(error)})", remedy) from error


class Connection:
    """A process's place in a Ray cluster; called, it leaves that, unless it was in it before.

    If Ray itself dies, its own next call hangs, and then ends the process with a dump. So a thread looks now and then.

    Args:
        look: Returns what of Ray has died, in words, or None; where there is no look, nothing is looked at.
        is_ours: Whether it is to be left.
    """

    def __init__(self, look: Callable[[], str | None] | None, is_ours: bool = True) -> None:
        self._look, self._is_ours = look, is_ours
        self._left = threading.Event()
        self.died: str | None = None  # what has, in words
        if look is not None:
            threading.Thread(target=self._watch, args=[look], name="ray-watch", daemon=True).start()

    def __call__(self) -> None:
        """Leave the cluster."""
        self._left.set()
        if self._is_ours:
            ray.shutdown()

    def check(self) -> None:
        """Raise an `EvaluationError` if Ray has died."""
        if self.died is None and self._look is _dead:  # which takes no time; a second later Ray may have ended us
            self.died = _dead()
        if self.died is not None:
            raise EvaluationError(
                f"{self.died} has died, and the replicas with it; what they had evaluated is in the ledger, and the "
                "same command goes on from there"
            )

    def _watch(self, look: Callable[[], str | None]) -> None:
        while self.died is None and not self._left.wait(_WATCH_S):
            self.died = look()


def _dead() -> str | None:
    """Return which process of our own Ray is dead."""
    node = ray._private.worker._global_node
    dead: list[str] = [] if node is None else [_VITAL[kind] for kind, _ in node.dead_processes() if kind in _VITAL]
    return f"Ray's {dead[0]} on this machine" if dead else None


def _silent() -> Callable[[], str | None]:
    """Return a look at a cluster of others: its head is dead if it has taken no connections for a while."""
    address = ray.get_runtime_context().gcs_address
    host, _, port = address.rpartition(":")
    heard = time.monotonic()

    def look() -> str | None:
        nonlocal heard
        with contextlib.suppress(OSError):
            socket.create_connection((host.strip("[]"), int(port)), _WATCH_S).close()
            heard = time.monotonic()
        return f"the head of the Ray cluster at {address}" if time.monotonic() - heard > _SILENT_S else None

    return look


@contextlib.contextmanager
def joining_ray(
    address: str | None, cpus: float, make_fleet: Callable[[], FleetT]
) -> Iterator[Callable[[], tuple[FleetT, Callable[[], None], Callable[[], None]]]]:
    """Join a cluster as `join_ray` does, and make a fleet there, in a thread beside the context.

    Left by an error, the context closes the fleet and leaves the cluster. Linux kills Ray's processes once the thread
    that started them ends, so that thread stays until Ray is left.

    Yields:
        A function that waits for this, and returns the fleet, what closes it and leaves the cluster, and what raises
        if Ray has died; or it raises what `join_ray` or `make_fleet` raises.
    """
    joining: Future[tuple[FleetT, Connection]] = Future()
    is_left = threading.Event()

    def join() -> None:
        with contextlib.ExitStack() as on_error:
            try:
                leave_ray = join_ray(address, cpus)
                on_error.callback(leave_ray)
                joining.set_result((make_fleet(), leave_ray))
            except BaseException as error:
                joining.set_exception(error)
            else:
                on_error.pop_all()
                is_left.wait()

    def joined() -> tuple[FleetT, Callable[[], None], Callable[[], None]]:
        fleet, connection = joining.result()

        def leave() -> None:
            if connection.died is None:
                fleet.close()
            connection()
            is_left.set()

        return fleet, leave, connection.check

    threading.Thread(target=join, name="ray", daemon=True).start()
    try:
        yield joined
    except BaseException:
        with contextlib.suppress(UserError):  # if that is what failed, it is raised already
            joined()[1]()
        raise


@contextlib.contextmanager
def raising(check: Callable[[], None], warn: Callable[[str], None]) -> Iterator[None]:
    """Raise what a check raises once Ray has died, also in the middle of a call of Ray's that would never return.

    Such a call looks for signals at most, and only in the main thread; in any other the context does nothing. Where it
    does not look, Ray ends the process within a minute, which is said.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    main, is_left = threading.get_ident(), threading.Event()

    def watch() -> None:
        while not is_left.wait(_CHECK_S):
            try:
                check()
            except EvaluationError as error:
                signal.pthread_kill(main, signal.SIGUSR2)  # Tune itself uses the other one
                if not is_left.wait(_STUCK_S):
                    warn(f"{error}; Ray ends this process within a minute")
                return

    before = signal.getsignal(signal.SIGUSR2)

    def check_all(number: int, frame: FrameType | None) -> None:
        check()
        if callable(before):  # as of such a context around this one
            before(number, frame)

    signal.signal(signal.SIGUSR2, check_all)
    try:
        threading.Thread(target=watch, name="ray-raise", daemon=True).start()
        yield
    except Exception:
        check()  # else a library may say less of the same
        raise
    finally:
        is_left.set()
        signal.signal(signal.SIGUSR2, before)


def room() -> Mapping[str, float]:
    """Return the resources of the whole cluster, by kind: ``CPU``, ``GPU``, and ``memory`` in bytes."""
    return ray.cluster_resources()


def this_node() -> str:
    """Return the name of a resource that only this node has: whatever asks for a little of it runs here."""
    own = ray.get_runtime_context().get_node_id()
    (resources,) = [node["Resources"] for node in ray.nodes() if node["NodeID"] == own]
    return next(name for name in resources if name.startswith("node:") and "internal" not in name)


def _connect(address: str) -> None:
    named = f"cluster.address={address}"
    if address == "auto" and (known := os.environ.get("RAY_ADDRESS")):  # which Ray takes then
        address, named = known, f"{named} (RAY_ADDRESS={known})"
    os.environ.setdefault("RAY_gcs_server_port_wait_time_s", str(_ANSWER_S // 10))
    if address.startswith("ray://") and importlib.util.find_spec("grpc") is None:
        raise UserError(f"{named} needs Ray's client; install it with: pip install 'ray[client]'")
    os.environ.setdefault("RAY_CLIENT_RECONNECT_GRACE_PERIOD", str(_ANSWER_S))
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        if host:  # Ray itself would try for minutes
            socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
        for _ in range(_CLIENT_ATTEMPTS - 1):
            with contextlib.suppress(ConnectionAbortedError):
                return _start(address=address)
        _start(address=address)
    except (ValueError, OSError, OverflowError, RuntimeError) as error:
        # Ray looks for a token by itself where it looks for the cluster by itself, and a cluster may have one unasked
        looks = address == "auto" or "RAY_AUTH_MODE" in os.environ
        token = "" if looks else "set RAY_AUTH_MODE=token if it has a token, "
        raise UserError(
            f"{named} leads to no Ray cluster ({first_line(error)}); start one with "
            f"ray start --head, correct the address, {token}or leave it out to use this machine alone"
        ) from error


def _start(**options: Any) -> None:
    """Start Ray quietly, and put back the handler for SIGTERM, which Ray replaces by its own."""
    on_termination = signal.getsignal(signal.SIGTERM)
    # Ray prints the logs of its processes that have died on standard output, where results are; `log_to_driver` or not.
    vars(ray._private.worker)["print_to_stdstream"] = lambda *_, **__: None
    # Its handler in C++, which stays where Ray starts in a thread, ends the process three seconds after SIGTERM.
    vars(ray._private.ray_constants)["RAY_DISABLE_FAILURE_SIGNAL_HANDLER"] = True
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
    except SystemExit as error:  # that handler, while Ray starts
        raise KeyboardInterrupt from error
    finally:
        if callable(on_termination) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, on_termination)


@contextlib.contextmanager
def _without_unused() -> Iterator[None]:
    """Start Ray without the processes that we have no use for."""
    node = ray._private.node.Node
    methods = {name: getattr(node, name) for name in _UNUSED if hasattr(node, name)}
    for name in methods:
        setattr(node, name, lambda *_, **__: None)
    try:
        yield
    finally:
        for name, method in methods.items():
            setattr(node, name, method)


def _make_token() -> None:
    """Make the token of clusters on this machine if there is none, readable by its owner alone; Ray's own is not."""
    named = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys()
    if named or os.environ.get("RAY_AUTH_MODE", "token").lower() != "token":
        return
    token = Path.home() / ".ray" / "auth_token"
    unfinished = token.with_name(f"{token.name}.{os.getpid()}")
    with contextlib.suppress(OSError, RuntimeError):  # what cannot be written, or has no home, Ray tells
        token.parent.mkdir(parents=True, exist_ok=True)
        if not token.exists():
            unfinished.touch(0o600, exist_ok=False)
            unfinished.write_text(secrets.token_hex(32), encoding="ascii")
            with contextlib.suppress(FileExistsError):  # another process was faster
                os.link(unfinished, token)
            unfinished.unlink()
