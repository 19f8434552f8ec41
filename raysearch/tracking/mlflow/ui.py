"""MLflow's own server on a store: ``raysearch ui``."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from raysearch.core.escaping import visible
from raysearch.errors import UserError, what_failed
from raysearch.tracking.mlflow.client import attempt, cause_of, client_of, keep_views, search_all
from raysearch.tracking.mlflow.views import SEARCHES, objective_key, objectives_of, view_link
from raysearch.tracking.options import Store

# Job workers serve MLflow's GenAI features only, and cost seven processes of 250 MiB each.
_ENVIRONMENT = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}

_OPENS_S = 20.0  #: MLflow itself would try for minutes


def serve_ui(folder: Path, uri: str | None, host: str = "127.0.0.1", port: int = 5000) -> NoReturn:
    """Print what to open in a browser, run MLflow's server on the store, and end with it or by Ctrl-C or SIGTERM.

    The server has no passwords: a host other than this machine's own opens the store to everyone who reaches it.
    Browsers that name the host by anything but ``localhost`` or a private address need it in
    ``MLFLOW_SERVER_ALLOWED_HOSTS``.

    Raises:
        UserError: There is no store yet, it cannot be opened or is a server already, or the port is taken.
    """
    store = Store.locate(uri, folder, "--uri")
    if store.is_server:
        raise UserError(f"--uri={store.uri} is a server already; open that address in a browser")
    if store.is_embedded and not (store.folder / "mlflow.db").is_file():
        raise UserError(f"--store={folder} holds no recorded search yet; make one with `raysearch search`")
    _require_free(host, port)
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    try:
        lines = attempt(lambda: _links(store, address), _OPENS_S)
    except Exception as error:
        named = f"--store={folder}" if store.is_embedded else f"--uri={store.shown}"
        raise UserError(f"{named} cannot be opened ({cause_of(error)}); correct it") from error
    said = ["MLflow starts, which takes some seconds; Ctrl-C ends it.", *lines]
    sys.stdout.write("".join(visible(line) + "\n" for line in said))
    sys.stdout.flush()
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--artifacts-destination", store.artifacts.as_uri()),
        *("--host", host, "--port", str(port), "--workers", "1"),
    ]
    # The address may hold a password, so it is not among the command's words, which everybody on the machine can read.
    sys.exit(_run(command, os.environ | _ENVIRONMENT | {"MLFLOW_BACKEND_STORE_URI": store.uri}))


def _run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a server to its end, and return its exit code, or until this process is told to end.

    Its group is its own, ended by SIGTERM: at a terminal's Ctrl-C each of MLflow's processes would print a traceback.
    """
    for kind in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(kind) != signal.SIG_IGN:  # as under nohup
            signal.signal(kind, signal.default_int_handler)
    server = subprocess.Popen(command, env=environment, process_group=0)
    try:
        return server.wait()
    except KeyboardInterrupt:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        server.wait()
        return 0


def _links(store: Store, address: str) -> list[str]:
    """Return what to open in a browser, in lines; MLflow's own address leads to another page."""
    client, lines = client_of(store), list[str]()
    for one in client.search_experiments():
        if runs := list(search_all(client, one.experiment_id, SEARCHES)):
            keep_views(client, one, runs)
            lines.append(f"{one.name}: all searches: {address}/{view_link(one.experiment_id, 'TABLE')}")
            for objective in objectives_of(runs):
                key = objective_key(objective)
                table, charts = (view_link(one.experiment_id, mode, key) for mode in ("TABLE", "CHART"))
                lines.append(f"{one.name}, {objective}: the lowest loss first: {address}/{table}")
                lines.append(f"{one.name}, {objective}: charts: {address}/{charts}")
    return lines or ["There is no search here yet; make one with raysearch search."]


def _require_free(host: str, port: int) -> None:
    if not 1 <= port <= 65535:
        raise UserError(f"--port={port} is not a port; use 1024..65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise UserError(
            f"--host={host} is not an address of this machine ({what_failed(error)}); use 127.0.0.1"
        ) from None
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one left a moment ago is free
        try:
            probe.bind(address)
        except OSError as error:
            raise UserError(
                f"--port={port} of {host} cannot be had ({error.strerror}); choose another, as in `--port 5050`"
            ) from None
