"""The prefix walk against a plain Hugging Face forward per mask, on the same masks and tokens, in one process.

    python experiments/benchmarks/walk_vs_loop.py                        SmolLM2-135M, float32, singles
    python experiments/benchmarks/walk_vs_loop.py --dtype bfloat16 --round pairs --samples 1
    python experiments/benchmarks/walk_vs_loop.py --random-llama 4096x32 --device cuda --dtype bfloat16   needs a GPU

The plain loop is what other tools do: swap in the list of kept layers, call the model, take the cross-entropy of all
its logits. Both run in turn, `--repeats` times, and the ratio is taken pair by pair, since machines are noisy. Seconds
are wall-clock of this process with `--threads` CPU threads; layer-forwards do not depend on the machine.
"""

import argparse
import itertools
import statistics
import time

import numpy as np
import torch
from mfu import calibration_of, load, parser_of, random_batch
from torch.nn import functional
from transformers import PreTrainedModel

from raysearch.calibration.batch import Batch
from raysearch.core.mask import Mask
from raysearch.evaluation.prefix import naive_layer_forwards, plan_prefixes
from raysearch.evaluation.replica import Replica
from raysearch.evaluation.unit import MaskUnit
from raysearch.models.stack import LayerStack


def main() -> None:
    options = parse()
    torch.set_num_threads(options.threads)
    model = load(options)
    batch = random_batch(model.config.vocab_size, options.samples, options.seq_len)
    masks = round_masks(options.round, model.config.num_hidden_layers)
    calibration = calibration_of(batch, options.samples)
    replica = Replica(LayerStack(model), [calibration], options.threads)
    plan = plan_prefixes(masks, replica.stack.sites)
    naive = naive_layer_forwards(masks, replica.stack.sites)

    walk_s, loop_s = [], []
    for _ in range(options.repeats):
        walked, seconds = timed(
            lambda: replica.evaluate(MaskUnit(calibration.fingerprint, 0, plan.masks)).values, options.device
        )
        walk_s.append(seconds)
        looped, seconds = timed(lambda: {mask: plain_losses(model, mask, batch) for mask in plan.masks}, options.device)
        loop_s.append(seconds)
    gap = max(np.abs(walked[mask] / looped[mask] - 1).max() for mask in plan.masks)
    ratios = [loop / walk for walk, loop in zip(walk_s, loop_s, strict=True)]

    device = torch.cuda.get_device_name() if options.device == "cuda" else f"CPU, {options.threads} thread(s)"
    print(f"model            {options.random_llama or options.model}, {options.dtype}, {device}")
    print(f"masks            {len(masks)} ({options.round}), {options.samples} x {options.seq_len} tokens")
    print(f"layer-forwards   walk {plan.layer_forwards:,}   loop {naive:,}   ratio {naive / plan.layer_forwards:.2f}")
    print(f"head-forwards    walk {len(plan.masks):,}   loop {len(masks):,}")
    print(
        f"seconds (median) walk {statistics.median(walk_s):.2f}   loop {statistics.median(loop_s):.2f}   "
        f"ratio {statistics.median(ratios):.2f} (min {min(ratios):.2f}, max {max(ratios):.2f}, n={len(ratios)})"
    )
    print(f"states held      {plan.peak_held} at most, besides the current one")
    print(f"largest relative difference of a sample's loss: {gap:.1e}")
    if options.device == "cuda":
        print(f"peak GPU memory  {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__, "float32")
    parser.add_argument("--round", default="singles", choices=["singles", "pairs"])
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def round_masks(name: str, n_layers: int) -> list[Mask]:
    sizes = {"singles": [1], "pairs": [1, 2]}[name]
    return [Mask.of(*layers) for size in sizes for layers in itertools.combinations(range(n_layers), size)]


@torch.inference_mode()
def plain_losses(model: PreTrainedModel, mask: Mask, batch: Batch) -> np.ndarray:
    """Return the summed nats of each sample, by the model's own forward without the layers of the mask."""
    layers = model.model.layers
    model.model.layers = torch.nn.ModuleList(layer for index, layer in enumerate(layers) if index not in mask)
    try:
        ids = torch.tensor(batch.input_ids, device=model.device)
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
        nll = functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        return nll.view(len(ids), -1).double().sum(1).cpu().numpy()
    finally:
        model.model.layers = layers


def by_sample(model: PreTrainedModel, mask: Mask, batch: Batch) -> np.ndarray:
    """Return the same by a forward for every sample, as SLEB does."""
    rows = (batch.samples(sample, sample + 1) for sample in range(batch.n_samples))
    return np.concatenate([plain_losses(model, mask, row) for row in rows])


def timed(work, device):
    started = time.perf_counter()
    result = work()
    if device == "cuda":
        torch.cuda.synchronize()
    return result, time.perf_counter() - started


if __name__ == "__main__":
    main()
