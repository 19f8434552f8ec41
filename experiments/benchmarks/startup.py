"""Measure the parts of the time from a command to its first unit.

    python experiments/benchmarks/startup.py --repeats 5

Each run is a separate process that does the steps of ``raysearch search`` on the demo one after another. Each run draws
other samples, as in a first search on new data. With ``--cold`` each run also reads the GGUF file, as the very first
search does: in this process, while Ray starts.
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

OVERRIDES = ["searcher=greedy", "remove=5", "model.dtype=bfloat16", "data.samples=8", "data.seq_len=128"]


def main() -> None:
    """Run the steps `--repeats` times, and print the medians."""
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
    """Return seconds, and CPU seconds, of each step from the command to the first unit."""
    taken: dict[str, list[float]] = {}

    @contextmanager
    def phase(name: str) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        taken[name] = [time.perf_counter() - wall, time.process_time() - cpu]

    with phase("imports"):
        from raysearch.configuration import build
        from raysearch.core.mask import Mask
        from raysearch.evaluation.prepared_data import prepare_data
        from raysearch.evaluation.unit import Job, MaskUnit
        from raysearch.models.description import describe
    with phase("config"):
        spec = build.search_spec([*OVERRIDES, f"store={store}", f"data.seed={time.time_ns() % 2**31}"])
    with phase("model's sizes"):
        info = describe(spec.evaluation.model)
    with phase("calibration"):
        (calibration,) = prepare_data(spec.evaluation, info).calibrations
    with phase("Ray"):
        cluster = spec.evaluation.cluster.join()
        pool = cluster.open(info, calibration.n_shards)
    with phase("first unit, with the start of its replicas"):
        unit = MaskUnit(calibration.fingerprint, 0, (Mask(),))
        next(filter(None, pool.run([unit], [calibration])))

    class ProcessorTime(Job):
        def run(self, replica: object) -> float:
            return time.process_time()

    ((_, cpu),) = filter(None, pool.run([ProcessorTime()]))
    taken["a replica, until then"] = [0.0, cpu]
    pool.close()
    cluster.close()
    prepare_data(spec.evaluation, describe(spec.evaluation.model))
    return taken


def show(runs: list[dict[str, list[float]]]) -> None:
    """Print a table of medians."""
    medians = {name: [statistics.median(run[name][kind] for run in runs) for kind in (0, 1)] for name in runs[0]}
    _, replica = medians.popitem()[1]
    wall, cpu = map(sum, zip(*medians.values(), strict=True))
    print("| step | seconds | CPU seconds of the driver |\n|---|---|---|")
    for name, (of_step, cpu_of_step) in medians.items():
        print(f"| {name} | {of_step:.2f} | {cpu_of_step:.2f} |")
    print(f"| all, n = {len(runs)} | {wall:.2f} | {cpu:.2f} |")
    print(f"\nA replica, with the start of its process: {replica:.2f} CPU seconds.")


if __name__ == "__main__":
    main()
