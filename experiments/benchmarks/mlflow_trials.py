"""Measures what it costs to record a trial in MLflow: in the embedded store, and at a server.

    python experiments/benchmarks/mlflow_trials.py --trials 1000
    python experiments/benchmarks/mlflow_trials.py --trials 1000 --child-runs all
    python experiments/benchmarks/mlflow_trials.py --trials 300 --child-runs all --server

A simulated search of rounds of 60 masks is sent as fast as possible, so the time is that of recording alone.
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
from typing import Literal

from raysearch.core.mask import Mask
from raysearch.searching.observer import repeat
from raysearch.testing.tracker_suite import search_of
from raysearch.tracking.mlflow.tracker import MlflowTracker
from raysearch.tracking.options import TrackingOptions

_PORT = 5077


def main() -> None:
    """Record a short search, so that MLflow is imported and has its tables, then the long one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000, help="about how many")
    parser.add_argument("--child-runs", choices=["best", "all", "none"], default="best", help="as tracking.child_runs")
    parser.add_argument("--server", action="store_true", help="record at an MLflow server of this machine")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, _server(folder, options.server) as uri:
        _record(Path(folder), uri, "first", 1, options.child_runs)
        n_trials, wall_s, cpu_s = _record(Path(folder), uri, "long", max(1, options.trials // 60), options.child_runs)
    where = "server" if options.server else "embedded store"
    print(f"{where}, child runs: {options.child_runs}; {n_trials} trials: {wall_s:.1f} s, {cpu_s:.1f} s of CPU")


def _record(
    folder: Path, uri: str | None, name: str, n_rounds: int, child_runs: Literal["best", "all", "none"]
) -> tuple[int, float, float]:
    """Return the number of trials, and the seconds and seconds of this process's CPU that recording them took."""
    rounds = [[Mask.of(layer, 60 + number) for layer in range(60)] for number in range(n_rounds)]
    search = search_of(rounds, lambda mask: 2.8 + 0.01 * sum(mask), 60 + n_rounds, 2, name)
    options = TrackingOptions("mlflow", uri, "benchmark", folder, child_runs=child_runs)
    tracker = MlflowTracker(options, print, timeout_s=300)
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
