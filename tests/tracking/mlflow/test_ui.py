import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from raysearch.errors import UserError
from raysearch.tracking.mlflow.ui import serve_ui
from tests.tracking.conftest import Served, closed_port, get, start_python

# MLflow's own calls of SQLAlchemy.
pytestmark = pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")


def test_a_folder_without_a_store_names_the_command_that_makes_one(tmp_path):
    with pytest.raises(UserError, match="raysearch search"):
        serve_ui(tmp_path, None)


def test_a_server_needs_no_second_one(tmp_path):
    with pytest.raises(UserError, match="http://mlflow:5000 is a server already"):
        serve_ui(tmp_path, "http://mlflow:5000")


def test_a_port_in_use_is_named_with_the_remedy(tmp_path):
    (tmp_path / "mlflow.db").touch()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=f"port={port} .*in use.*--port"):
            serve_ui(tmp_path, None, port=port)


@pytest.mark.parametrize(
    ("host", "port", "named"),
    [("no.such.host.invalid", 5000, "host=no.such"), ("127.0.0.1", 70000, "port=70000"), ("127.0.0.1", 0, "port=0")],
)
def test_an_impossible_address_is_refused(tmp_path, host, port, named):
    (tmp_path / "mlflow.db").touch()
    with pytest.raises(UserError, match=named):
        serve_ui(tmp_path, None, host=host, port=port)


def test_a_server_that_fails_is_reported(tmp_path, monkeypatch):
    (tmp_path / "mlflow.db").touch()
    monkeypatch.setattr("raysearch.tracking.mlflow.ui._command", lambda *_: ["false"])
    with pytest.raises(UserError, match="stopped with code 1"):
        serve_ui(tmp_path, None, port=closed_port())


def test_it_serves_runs_and_their_artifacts(served: Served):
    csv = get(f"{served.url}/get-artifact?run_uuid={served.run_id}&path=trials.csv")
    assert csv.startswith(b"index,round,removed")
    listed = get(f"{served.url}/ajax-api/2.0/mlflow/artifacts/list?run_id={served.run_id}")
    assert b"mask_map.png" in listed


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_what_the_server_started_ends_with_it(tmp_path: Path, ending: signal.Signals):
    (tmp_path / "mlflow.db").touch()
    script = f"""
from pathlib import Path
from raysearch.tracking.mlflow import ui
ui._command = lambda *_: ["sh", "-c", "sleep 60 & echo $!; wait"]
ui.serve_ui(Path("."), None, port={closed_port()})
"""
    with start_python(script, tmp_path, subprocess.PIPE) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        process.send_signal(ending)
        assert process.wait(15) == 0
        process.stdout.read()  # the pipe ends with the last of those that hold it
    deadline = time.monotonic() + 5
    with pytest.raises(ProcessLookupError):
        while time.monotonic() < deadline:  # the system takes a moment to bury it
            os.kill(worker, 0)
            time.sleep(0.05)
