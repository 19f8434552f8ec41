"""Opens MLflow's own pages on what was recorded: ``raysearch ui``."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from raysearch.errors import UserError
from raysearch.tracking.store import Store

# Job workers serve MLflow's GenAI features only, and cost seven processes of 250 MiB each.
_ENVIRONMENT = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
_STOP_S = 10


def serve_ui(folder: Path, uri: str | None, host: str = "127.0.0.1", port: int = 5000) -> None:
    """Runs MLflow's server on the store in the foreground, until Ctrl-C.

    The server has no passwords: a host other than this machine's own opens the store to whoever reaches it. Browsers
    that name the host by anything but ``localhost`` or a private address need it in ``MLFLOW_SERVER_ALLOWED_HOSTS``.

    Args:
        folder: The folder of the embedded store and of artifacts.
        uri: MLflow's tracking URI; None for the embedded store.
        host: The address to listen on.
        port: The port to listen on.

    Raises:
        UserError: There is no store yet, or none of that kind, the store is a server already, the port is taken, or the
            server stopped.
    """
    store = Store.locate(uri, folder, "--uri")
    if store.is_server:
        raise UserError(f"--uri={store.uri} is a server already; open that address in a browser")
    if store.is_embedded and not (store.folder / "mlflow.db").is_file():
        raise UserError(f"--store={folder} holds no recorded search yet; make one with `raysearch search`")
    _require_free(host, port)
    with _terminate_as_interrupt(), ExitStack() as ending:
        try:
            with _signals_held() as let_through:
                # In a session of its own, so that it ends as a whole when told to, and not in parts by Ctrl-C.
                server = subprocess.Popen(
                    _command(store, host, port),
                    # Not among the command's words, which everybody on the machine can read.
                    env=os.environ | _ENVIRONMENT | {"MLFLOW_BACKEND_STORE_URI": store.uri},
                    start_new_session=True,
                    preexec_fn=let_through,
                )
                ending.callback(_stop, server)
            code = server.wait()
        except KeyboardInterrupt:
            return
    raise UserError(f"the MLflow server on port {port} stopped with code {code}; its own words are above")


def _command(store: Store, host: str, port: int) -> list[str]:
    return [
        *(sys.executable, "-m", "mlflow", "server"),
        *("--artifacts-destination", store.artifacts.as_uri()),
        *("--host", host, "--port", str(port), "--workers", "1"),
    ]


def _require_free(host: str, port: int) -> None:
    if not 1 <= port <= 65535:
        raise UserError(f"--port={port} is no port; use 1024..65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise UserError(f"--host={host} is no address of this machine ({error.strerror}); use 127.0.0.1") from None
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one left a moment ago is free
        try:
            probe.bind(address)
        except OSError as error:
            raise UserError(
                f"--port={port} of {host} cannot be had ({error.strerror}); choose another, as in `--port 5050`"
            ) from None


@contextmanager
def _terminate_as_interrupt() -> Iterator[None]:
    """Takes SIGTERM, which containers and schedulers send, for Ctrl-C, so that no server is left behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _signals_held() -> Iterator[Callable[[], object]]:
    """Keeps Ctrl-C and SIGTERM waiting, and gives what lets them through again in a child."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    let_through = partial(signal.pthread_sigmask, signal.SIG_SETMASK, before)
    try:
        yield let_through
    finally:
        let_through()


def _stop(server: subprocess.Popen[bytes]) -> None:
    """Ends the server and the workers it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(server.pid, number)
            server.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            return
