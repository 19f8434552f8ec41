"""Measures what it costs to record a trial in MLflow: in the embedded store, and at a server.

    python experiments/benchmarks/mlflow_trials.py --trials 1000
    python experiments/benchmarks/mlflow_trials.py --trials 300 --server

A simulated search of greedy rounds is told as fast as it can be, so the time is that of recording alone.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from raysearch.search.observer import repeat
from raysearch.testing.tracker_suite import greedy_search
from raysearch.tracking.mlflow.tracker import MlflowTracker
from raysearch.tracking.options import TrackingOptions

_PORT = 5077


def main() -> None:
    """Record a short search, so that MLflow is imported and has its tables, then the long one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000, help="about how many")
    parser.add_argument("--server", action="store_true", help="record at an MLflow server of this machine")
    options = parser.parse_args()
    n_remove = max(1, options.trials // 60)
    with tempfile.TemporaryDirectory() as folder, _server(folder, options.server) as uri:
        _record(Path(folder), uri, "first-m1", 1)
        n_trials, wall, cpu = _record(Path(folder), uri, f"long-m{n_remove}", n_remove)
    where = "server" if options.server else "embedded store"
    print(f"{where}: {n_trials} trials, {1000 * wall / n_trials:.1f} ms a trial, {1000 * cpu / n_trials:.1f} ms of CPU")


def _record(folder: Path, uri: str | None, name: str, n_remove: int) -> tuple[int, float, float]:
    """Return the number of trials, and the seconds and seconds of this process's CPU that recording them took."""
    search = greedy_search(60 + n_remove // 2, n_remove, name)
    options = TrackingOptions("mlflow", uri, "benchmark", folder, max_child_runs=sys.maxsize)
    tracker = MlflowTracker(options, print)
    wall, cpu = time.perf_counter(), time.process_time()
    repeat(search, tracker)
    tracker.close()
    return len(search.trials), time.perf_counter() - wall, time.process_time() - cpu


@contextmanager
def _server(folder: str, wanted: bool) -> Iterator[str | None]:
    """Run a server meanwhile, if one is wanted, and give its address."""
    if not wanted:
        yield None
        return
    places = ["--backend-store-uri", f"sqlite:///{folder}/server.db", "--artifacts-destination", f"{folder}/files"]
    command = [sys.executable, "-m", "mlflow", "server", *places, "--port", str(_PORT), "--workers", "1"]
    environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, process_group=0) as server:
        try:
            _wait(f"http://127.0.0.1:{_PORT}")
            yield f"http://127.0.0.1:{_PORT}"
        finally:
            os.killpg(server.pid, 15)


def _wait(url: str) -> None:
    for _ in range(240):
        try:
            urllib.request.urlopen(f"{url}/health", timeout=1).close()
        except OSError:
            time.sleep(0.5)
        else:
            return
    raise SystemExit(f"the server at {url} has not started")


if __name__ == "__main__":
    main()
