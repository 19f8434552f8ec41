import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from raysearch.errors import UserError
from raysearch.testing.tracker_suite import greedy_search
from raysearch.tracking.mlflow_tracker import MlflowTracker
from raysearch.tracking.ui import serve_ui

ROOT = Path(__file__).parents[2]


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
        with pytest.raises(UserError, match=f"port={port} .* raysearch ui --port {port + 1}"):
            serve_ui(tmp_path, None, port=port)


@pytest.mark.parametrize(("host", "port"), [("no.such.host.invalid", 5000), ("127.0.0.1", 70000)])
def test_an_impossible_address_is_refused(tmp_path, host, port):
    (tmp_path / "mlflow.db").touch()
    with pytest.raises(UserError, match=f"{port}"):
        serve_ui(tmp_path, None, host=host, port=port)


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_it_serves_runs_and_their_artifacts_until_told_to_stop(tmp_path, ending):
    tracker = MlflowTracker(None, "tests", tmp_path / "a folder", pytest.fail)
    greedy_search(4, 1).tell(tracker)
    run_id = tracker.close()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script = f"from pathlib import Path; from raysearch.tracking.ui import serve_ui; serve_ui(Path('a folder'), None, port={port})"
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert get(f"http://127.0.0.1:{port}/health", wait_s=40) == b"OK"
        csv = get(f"http://127.0.0.1:{port}/get-artifact?run_uuid={run_id}&path=trials.csv")
        assert csv.startswith(b"index,round,removed")
        listed = get(f"http://127.0.0.1:{port}/ajax-api/2.0/mlflow/artifacts/list?run_id={run_id}")
        assert b"mask_map.png" in listed
    finally:
        process.send_signal(ending)
    assert process.wait(15) == 0
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0, "no server is left behind"


def get(url: str, wait_s: float = 0) -> bytes:
    deadline = time.monotonic() + wait_s
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                content: bytes = answer.read()
                return content
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
