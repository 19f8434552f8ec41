"""Measures where the time from a command to its first unit goes.

    python experiments/benchmarks/startup.py --repeats 5

Each run is a process of its own that does the steps of ``raysearch search`` on the demo one after another; in the
command itself Ray starts while the weights are read. ``--cold`` reads the GGUF file anew in each run, as the very first
search does.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WORDS = ["searcher=greedy", "remove=5", "model.dtype=bfloat16", "data.samples=8", "data.seq_len=128"]


def main() -> None:
    """Run as often as was asked for, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cold", action="store_true", help="read the GGUF file in each run")
    parser.add_argument("--store", help=argparse.SUPPRESS)  # that of one run
    options = parser.parse_args()
    if options.store:
        print(json.dumps(phases(Path(options.store))))
        return
    with tempfile.TemporaryDirectory() as store:
        command = [sys.executable, __file__, "--store", store]
        runs: list[dict[str, list[float]]] = []
        for number in range(options.repeats + (not options.cold)):
            if options.cold:
                shutil.rmtree(store)
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            if options.cold or number:  # the first run of all keeps the model
                runs.append(json.loads(done.stdout.splitlines()[-1]))
        show(runs)


def phases(store: Path) -> dict[str, list[float]]:
    """Return seconds, and seconds of this process's CPU, for each step from the command to the first unit."""
    taken: dict[str, list[float]] = {}

    @contextmanager
    def phase(name: str) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        taken[name] = [time.perf_counter() - wall, time.process_time() - cpu]

    with phase("imports"):
        import ray
        import transformers
        from transformers import PreTrainedModel  # noqa: F401  # its modelling code, which is imported when it is named

        from raysearch.cluster.actor import Recipe, own_versions
        from raysearch.cluster.fleet import Fleet, Needs
        from raysearch.cluster.pool import RayPool, Replicas
        from raysearch.cluster.session import join_ray
        from raysearch.config import build
        from raysearch.core.mask import Mask
        from raysearch.evaluation.replica import make_replica
        from raysearch.evaluation.session import prepare_data
        from raysearch.evaluation.unit import MaskUnit
        from raysearch.models.loading import describe, load_model
        from raysearch.models.shared_weights import pack

        transformers.logging.set_verbosity_error()
    with phase("config"):
        spec = build.search_spec([*WORDS, f"store={store}"])
    with phase("model's sizes"):
        info = describe(spec.evaluation.model)
    with phase("calibration"):
        (calibration,) = prepare_data(spec.evaluation, info).calibrations
    with phase("weights"):
        packed = pack(load_model(info.model, "cpu"))
    with phase("Ray"):
        leave = join_ray(None, 2)
    with phase("first unit"):
        recipe: list[Any] = [
            ray.put(Recipe(lambda packed: make_replica(info.model, 1, None, False, packed), packed, own_versions()))
        ]
        fleet = Fleet(1, 1, Needs(1, 0), 300)
        pool = RayPool(Replicas(fleet, recipe, 1), fleet.close)
        unit = MaskUnit(calibration.fingerprint, 0, (Mask(),))
        next(filter(None, pool.run([unit], {calibration.fingerprint: calibration})))
    pool.close()
    leave()
    return taken


def show(runs: list[dict[str, list[float]]]) -> None:
    """Print a table of medians, and of shares of all."""
    medians = {name: [statistics.median(run[name][kind] for run in runs) for kind in (0, 1)] for name in runs[0]}
    total = sum(wall for wall, _ in medians.values())
    print("| step | seconds | CPU seconds of the driver | share |\n|---|---|---|---|")
    for name, (wall, cpu) in medians.items():
        print(f"| {name} | {wall:.2f} | {cpu:.2f} | {wall / total:.0%} |")
    print(f"| all, n = {len(runs)} | {total:.2f} | {sum(cpu for _, cpu in medians.values()):.2f} | 100% |")


if __name__ == "__main__":
    main()
