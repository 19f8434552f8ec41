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

from raysearch.errors import UserError
from raysearch.text.escaping import visible
from raysearch.text.sentences import what_failed
from raysearch.tracking.mlflow.client import attempt, cause_of, client_of, keep_views, search_all
from raysearch.tracking.mlflow.views import SEARCHES, objective_key, objectives_of, view_link
from raysearch.tracking.options import MlflowStore

# Only MLflow's GenAI features need job workers, which are seven processes of 250 MiB each.
_ENVIRONMENT = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}

_TIMEOUT_S = 20.0  #: to open the store; MLflow alone would try for minutes


def serve_ui(folder: Path, uri: str | None, host: str = "127.0.0.1", port: int = 5000) -> NoReturn:
    """Print the addresses to open in a browser, and run MLflow's server on a store until Ctrl-C or SIGTERM.

    The server has no passwords. With a host other than a local address, everyone who can connect to it can use the
    store. A host name other than ``localhost`` or a private address must be in ``MLFLOW_SERVER_ALLOWED_HOSTS``.

    Args:
        folder: The folder of the embedded store and of artifacts.
        uri: A tracking URI; None for the embedded store.
        host: The address on which the server listens.
        port: The port on which the server listens.

    Raises:
        UserError: The store does not exist, cannot be opened or is a server itself, or the port is in use.
    """
    store = MlflowStore.locate(uri, folder, "--uri")
    if store.is_server:
        raise UserError(f"--uri={store.uri} is a server already; open that address in a browser")
    if store.is_embedded and not (store.folder / "mlflow.db").is_file():
        raise UserError(f"--store={folder} holds no recorded search yet; make one with `raysearch search`")
    _require_free(host, port)
    host_in_url = f"[{host}]" if ":" in host else host  # an address of IPv6 has colons
    address = f"http://{host_in_url}:{port}"
    try:
        links = attempt(lambda: _links(store, address), _TIMEOUT_S)
    except Exception as error:
        argument = f"--store={folder}" if store.is_embedded else f"--uri={store.redacted_uri}"
        raise UserError(f"{argument} cannot be opened ({cause_of(error)}); correct it") from error
    lines = ["MLflow starts, which takes some seconds; Ctrl-C ends it.", *links]
    sys.stdout.write("".join(visible(line) + "\n" for line in lines))
    sys.stdout.flush()
    command = [sys.executable, "-m", "mlflow", "server", "--artifacts-destination", store.artifacts.as_uri()]
    command += ["--host", host, "--port", str(port), "--workers", "1"]
    # The URI may contain a password, so it is not an argument: every user of the machine can read arguments.
    sys.exit(_run(command, os.environ | _ENVIRONMENT | {"MLFLOW_BACKEND_STORE_URI": store.uri}))


def _run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a server until it ends, or until this process receives a signal, and return the exit code.

    The server has a separate process group, which is ended by SIGTERM. In this process's group, each process of MLflow
    would print a traceback at Ctrl-C.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, signal.default_int_handler)
    server = subprocess.Popen(command, env=environment, process_group=0)
    try:
        return server.wait()
    except KeyboardInterrupt:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        server.wait()
        return 0


def _links(store: MlflowStore, address: str) -> list[str]:
    """Return lines with the addresses of the views of searches; MLflow's start page shows other things."""
    client = client_of(store)
    lines: list[str] = []
    for experiment in client.search_experiments():
        if runs := list(search_all(client, experiment.experiment_id, SEARCHES)):
            keep_views(client, experiment, runs)
            name = experiment.name
            lines.append(f"{name}: all searches: {address}/{view_link(experiment.experiment_id, 'TABLE')}")
            for objective in objectives_of(runs):
                key = objective_key(objective)
                table = view_link(experiment.experiment_id, "TABLE", key)
                charts = view_link(experiment.experiment_id, "CHART", key)
                lines.append(f"{name}, {objective}: the lowest loss first: {address}/{table}")
                lines.append(f"{name}, {objective}: charts: {address}/{charts}")
    return lines or ["This store has no search yet; make one with raysearch search."]


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
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that was closed a moment ago is free
        try:
            probe.bind(address)
        except OSError as error:
            raise UserError(
                f"--port={port} of {host} cannot be used ({error.strerror}); choose another, such as `--port 5050`"
            ) from None
