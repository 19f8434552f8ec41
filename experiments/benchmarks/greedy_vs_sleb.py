"""A greedy search against SLEB's way of evaluating its masks, on real prose, in one process.

    python experiments/benchmarks/greedy_vs_sleb.py                           SmolLM2-135M, float32, 4 x 128, 7 layers
    python experiments/benchmarks/greedy_vs_sleb.py --samples 64 --dtype bfloat16 --screening confident

SLEB (Song et al. 2024) runs its own model once for every mask and sample, and takes the cross entropy of all logits.
A few such evaluations are timed after each round, on a copy of the model as transformers made it, and multiplied by the
round's masks. Neither removes the first or the last layer. Seconds are CPU time of this process, with one thread; on a
GPU, those until it is done.
"""

import argparse
import copy
import statistics
import tempfile
import time
from pathlib import Path

import torch
from mfu import seconds
from walk_vs_loop import by_sample

from raysearch.config.build import search_spec
from raysearch.core.mask import Mask
from raysearch.evaluation.inline_pool import InlinePool
from raysearch.evaluation.replica import Replica
from raysearch.evaluation.session import open_session
from raysearch.models.loading import describe, load_model
from raysearch.models.stack import LayerStack
from raysearch.search.driver import run_rounds
from raysearch.search.observer import Observer
from raysearch.search.recorder import SearchRecorder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--remove", type=int, default=7)
    parser.add_argument("--screening", default="off", help="as in conf/screening/")
    parser.add_argument("--timed", type=int, default=2, help="evaluations as in SLEB that are timed after a round")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        compare(options, Path(folder))


def compare(options: argparse.Namespace, folder: Path) -> None:
    text = ["data=sotu", f"data.samples={options.samples}", f"data.seq_len={options.seq_len}"]
    place = ["cluster=inline", "tracking=none", f"store={folder}", f"model.dtype={options.dtype}"]
    asked = ["protect=[0,-1]", f"remove={options.remove}", f"screening={options.screening}"]
    spec = search_spec([*text, *place, *asked])
    info = describe(spec.evaluation.model)
    plain = load_model(info.model)
    device = plain.device.type
    replica = Replica(LayerStack(copy.deepcopy(plain)))
    session = open_session(spec.evaluation, info, lambda progress: None, make_pool=lambda: InlinePool(lambda: replica))
    problem = spec.problem(info)
    recorder = SearchRecorder(problem, session.evaluator, Observer(), time.perf_counter())
    rounds = run_rounds(spec.searcher, problem, spec.seed, recorder)
    shards = session.calibrations[0].shards

    def plain_loss(mask: Mask) -> list[float]:
        return [by_sample(plain, mask, shard).sum() for shard in shards]

    walked, sleb, gaps = 0.0, 0.0, []
    for number in range(options.remove):
        walked += seconds(lambda: next(rounds), device)
        (proposed, scores) = recorder.rounds[number]
        (best,) = scores.best(1)
        spent = []
        for mask in [best, *proposed.masks[1 :: max(1, len(proposed.masks) // options.timed)]][: options.timed]:
            losses: list[float] = []
            spent.append(seconds(lambda mask=mask, losses=losses: losses.extend(plain_loss(mask)), device))
            if mask in scores.losses:
                gaps.append(abs(scores[mask] * session.n_tokens / sum(losses) - 1))
        sleb += statistics.median(spent) * len(proposed.masks)
        print(f"{best!s:<32} walk {walked:7.1f} s   SLEB {sleb:7.1f} s   ratio {sleb / walked:.2f}", flush=True)
    meter = session.evaluator.meter
    print(
        f"{len(shards)} shards; {meter.layer_forwards:.0f} layer-forwards, {meter.head_forwards:.0f} head-forwards; "
        f"largest relative difference of a mask's loss: {max(gaps):.1e}"
    )
    session.close()


if __name__ == "__main__":
    main()
