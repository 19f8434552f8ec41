"""Joins a running Ray cluster, or starts one on this machine."""

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

from raysearch.errors import EvaluationError, UserError
from raysearch.text.sentences import first_line

FleetT = TypeVar("FleetT", bound="_Closable")

_log = logging.getLogger(__name__)
_ANSWER_S = 30  # how long a cluster may take to answer; Ray tries every ten seconds
_WATCH_S = 1.0  # poll interval of the watch thread
_SILENT_S = 40.0  # how long a cluster's head may be unreachable; after 60 s Ray ends this process
#: Poll interval while a call of Ray is in progress. It is short, since a local Ray may end this process one second
#: after its own death.
_CHECK_S = 0.2
_STUCK_S = 10.0  # a call of Ray that handles signals does so within this time
_VITAL = {"raylet": "raylet", "gcs_server": "GCS"}  # processes without which a local Ray is lost, with their names
#: The methods that start Ray's processes for autoscaling, the dashboard and the collection of logs. These take half of
#: the start-up time of Ray, a local Ray does not need them, and no option of Ray leaves them out.
_UNUSED = ("start_monitor", "start_api_server", "start_log_monitor")
_STARTS = 3  # how many times a local Ray is started
_TOO_SLOW = "timed out during startup"  # in Ray's error if its node has not started in 30 s, which is a fixed limit
_CLIENT_ATTEMPTS = 4  # connections of Ray's client: about one of ten server processes hangs at its start


class _Closable(Protocol):
    def close(self) -> None: ...


class RayStartError(UserError):
    """Ray cannot be started on this machine.

    Args:
        cause: The cause.
        remedy: What the user can do.
    """

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(f"{cause}; {remedy}")
        self.cause = cause


def join_ray(address: str | None, cpus: float) -> Connection:
    """Join a Ray cluster, or start one on this machine, unless this process is in a cluster already.

    Args:
        address: The address of the cluster; None to start one on this machine.
        cpus: How many CPUs a new cluster has; Ray starts a process for each.

    Raises:
        UserError: No cluster answers at the address, or none can be started on this machine.
    """
    if ray.is_initialized():
        return Connection(None, is_ours=False)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address is None:
        _make_token()
        _start_local(num_cpus=max(1, math.ceil(cpus)), include_dashboard=False)
        _log.info("Ray was started on this machine")
        return Connection(_find_dead)
    _connect(address)
    _log.info("joined the Ray cluster at %s", address)
    return Connection(None if address.startswith("ray://") else _head_watch())


def _start_local(**options: Any) -> None:
    """Start Ray on this machine; start it again if the machine is too busy for Ray's time limit."""
    for attempt in range(1, _STARTS + 1):
        try:
            with _without_unused():
                _start(address="local", **options)
            return
        except Exception as error:  # Ray has no exception class for this
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
    """The connection of this process to a Ray cluster. Calling it leaves the cluster, if this process joined it.

    If Ray dies, the next call of Ray hangs, and then ends the process with a dump. So a thread polls whether Ray lives.

    Args:
        find_dead: Returns the name of a part of Ray that has died, or None; None to poll nothing.
        is_ours: Whether this process joined the cluster, and so must leave it.

    Attributes:
        died: The name of the part of Ray that has died; None if none has.
    """

    def __init__(self, find_dead: Callable[[], str | None] | None, is_ours: bool = True) -> None:
        self._find_dead = find_dead
        self._is_ours = is_ours
        self._is_closed = threading.Event()
        self.died: str | None = None
        if find_dead is not None:
            threading.Thread(target=self._watch, args=[find_dead], name="ray-watch", daemon=True).start()

    def __call__(self) -> None:
        """Leave the cluster, if this process joined it."""
        self._is_closed.set()
        if self._is_ours:
            ray.shutdown()

    def check(self) -> None:
        """Raise an `EvaluationError` if Ray has died."""
        if self.died is None and self._find_dead is _find_dead:  # cheap; a second later Ray may end this process
            self.died = _find_dead()
        if self.died is not None:
            raise EvaluationError(
                f"{self.died} has died, and the replicas with it; what they had evaluated is in the ledger, and the "
                "same command goes on from there"
            )

    def _watch(self, find_dead: Callable[[], str | None]) -> None:
        while self.died is None and not self._is_closed.wait(_WATCH_S):
            self.died = find_dead()


def _find_dead() -> str | None:
    """Return the name of a vital process of the local Ray that has died; None if all live."""
    node = ray._private.worker._global_node
    dead: list[str] = [] if node is None else [_VITAL[kind] for kind, _ in node.dead_processes() if kind in _VITAL]
    return f"Ray's {dead[0]} on this machine" if dead else None


def _head_watch() -> Callable[[], str | None]:
    """Return a function that returns the name of the cluster's head if it has accepted no connection for a while."""
    address = ray.get_runtime_context().gcs_address
    host, _, port = address.rpartition(":")
    last_answer = time.monotonic()

    def find_dead_head() -> str | None:
        nonlocal last_answer
        with contextlib.suppress(OSError):
            socket.create_connection((host.strip("[]"), int(port)), _WATCH_S).close()
            last_answer = time.monotonic()
        return f"the head of the Ray cluster at {address}" if time.monotonic() - last_answer > _SILENT_S else None

    return find_dead_head


@contextlib.contextmanager
def joining_ray(
    address: str | None, cpus: float, make_fleet: Callable[[], FleetT]
) -> Iterator[Callable[[], tuple[FleetT, Callable[[], None], Callable[[], None]]]]:
    """Join a cluster as `join_ray` does, and make a fleet, in another thread while the body of the context runs.

    After an error in the body, the fleet is closed and the cluster is left. Linux kills Ray's processes when the thread
    that started them ends, so that thread lives until the cluster is left.

    Args:
        address: The address of the cluster; None to start one on this machine.
        cpus: How many CPUs a new cluster has.
        make_fleet: Makes the fleet.

    Yields:
        A function that waits until the fleet is made. It returns the fleet, a function that closes it and leaves the
        cluster, and a function that raises an `EvaluationError` if Ray has died. It raises the errors of `join_ray` and
        `make_fleet`.
    """
    joining: Future[tuple[FleetT, Connection]] = Future()
    has_left = threading.Event()

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
                has_left.wait()

    def joined() -> tuple[FleetT, Callable[[], None], Callable[[], None]]:
        fleet, connection = joining.result()

        def leave() -> None:
            if connection.died is None:
                fleet.close()
            connection()
            has_left.set()

        return fleet, leave, connection.check

    threading.Thread(target=join, name="ray", daemon=True).start()
    try:
        yield joined
    except BaseException:
        with contextlib.suppress(UserError):  # if joining failed, this error has been raised already
            joined()[1]()
        raise


@contextlib.contextmanager
def raising(check: Callable[[], None], warn: Callable[[str], None]) -> Iterator[None]:
    """Raise the error of `check` in the body of the context as soon as Ray has died.

    A signal interrupts calls of Ray that would never return. So this works in the main thread only; in any other thread
    the context does nothing. If a call ignores signals, Ray ends the process within a minute, and `warn` is called.

    Args:
        check: Raises an `EvaluationError` if Ray has died.
        warn: Called with a message if the call of Ray cannot be interrupted.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    main_thread = threading.get_ident()
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(_CHECK_S):
            try:
                check()
            except EvaluationError as error:
                signal.pthread_kill(main_thread, signal.SIGUSR2)  # Ray Tune uses SIGUSR1
                if not is_over.wait(_STUCK_S):
                    warn(f"{error}; Ray ends this process within a minute")
                return

    outer_handler = signal.getsignal(signal.SIGUSR2)

    def check_all(number: int, frame: FrameType | None) -> None:
        check()
        if callable(outer_handler):  # such as that of a context around this one
            outer_handler(number, frame)

    signal.signal(signal.SIGUSR2, check_all)
    try:
        threading.Thread(target=watch, name="ray-raise", daemon=True).start()
        yield
    except Exception:
        check()  # the error of a library may be a less clear consequence
        raise
    finally:
        is_over.set()
        signal.signal(signal.SIGUSR2, outer_handler)


def room() -> Mapping[str, float]:
    """Return the resources of the whole cluster, by kind: ``CPU``, ``GPU``, and ``memory`` in bytes."""
    return ray.cluster_resources()


def this_node() -> str:
    """Return the name of a resource that only this node has; a task that needs some of it runs on this node."""
    node_id = ray.get_runtime_context().get_node_id()
    (resources,) = [node["Resources"] for node in ray.nodes() if node["NodeID"] == node_id]
    return next(name for name in resources if name.startswith("node:") and "internal" not in name)


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
                return _start(address=address)
        _start(address=address)
    except (ValueError, OSError, OverflowError, RuntimeError) as error:
        # With `auto` Ray looks for a token, too. At other addresses it does not, and the cluster may need one.
        looks_for_token = address == "auto" or "RAY_AUTH_MODE" in os.environ
        token = "" if looks_for_token else "set RAY_AUTH_MODE=token if it has a token, "
        raise UserError(
            f"{option} leads to no Ray cluster ({first_line(error)}); start one with "
            f"ray start --head, correct the address, {token}or leave it out to use this machine alone"
        ) from error


def _start(**options: Any) -> None:
    """Start Ray quietly, and restore the handler for SIGTERM, which Ray replaces."""
    on_termination = signal.getsignal(signal.SIGTERM)
    # Ray prints the logs of its dead processes on standard output, where results are, even without `log_to_driver`.
    vars(ray._private.worker)["print_to_stdstream"] = lambda *_, **__: None
    # If Ray starts in a thread, its handler in C++ stays installed. It ends the process three seconds after SIGTERM.
    vars(ray._private.ray_constants)["RAY_DISABLE_FAILURE_SIGNAL_HANDLER"] = True
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
    except SystemExit as error:  # raised by that handler, while Ray starts
        raise KeyboardInterrupt from error
    finally:
        if callable(on_termination) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, on_termination)


@contextlib.contextmanager
def _without_unused() -> Iterator[None]:
    """Make Ray start without the processes that a local cluster does not need."""
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
