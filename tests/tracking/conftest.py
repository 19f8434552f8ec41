"""One MLflow server for all tests, started by the command of users, since a start takes seconds."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from raysearch.searching.observer import repeat
from raysearch.tracking.mlflow.tracker import MlflowTracker
from raysearch.tracking.options import TrackingOptions
from tests.tracking.simulated import greedy_search

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Served:
    """A server, started by `serve_ui`, on the embedded store of a folder that contains the run of one search."""

    url: str
    run_id: str
    folder: Path


@pytest.fixture
def tables(tmp_path: Path, store_with_tables: Path) -> None:
    """MLflow's tables in the test's folder."""
    shutil.copy(store_with_tables, tmp_path)


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory, store_with_tables: Path) -> Iterator[Served]:
    """The server; after all tests it receives SIGTERM and must end completely."""
    folder = tmp_path_factory.mktemp("served") / "a folder"
    folder.mkdir()
    shutil.copy(store_with_tables, folder)
    tracker = MlflowTracker(TrackingOptions("mlflow", None, "tests", folder), pytest.fail, timeout_s=300)
    repeat(greedy_search(4, 1), tracker)
    run_id = tracker.close()
    assert run_id is not None
    port = closed_port()
    with start_ui(folder, port, subprocess.DEVNULL) as process:
        try:
            assert get(f"http://127.0.0.1:{port}/health", wait_s=120) == b"OK"
            yield Served(f"http://127.0.0.1:{port}", run_id, folder)
        finally:
            process.terminate()
            assert process.wait(60) == 0
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0, "no server is left behind"


def start_ui(folder: Path, port: int, output: int) -> subprocess.Popen[str]:
    """``raysearch ui`` on a folder."""
    return start_python("import raysearch.__main__", folder, output, "ui", "--store", ".", "--port", str(port))


def start_python(script: str, folder: Path, output: int, *arguments: str) -> subprocess.Popen[str]:
    """Start a Python process in a separate process group; its stdout and stderr go to `output`."""
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def closed_port() -> int:
    """A port on which no server listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def get(url: str | urllib.request.Request, wait_s: float = 0) -> bytes:
    """The content at an address; errors are retried for `wait_s`."""
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
