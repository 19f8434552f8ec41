"""All that is to be known about raysearch on a GPU, by one command: `make gpu`.

    python experiments/benchmarks/gpu.py                   the shape of an 8B Llama on a GPU, a tiny one without a GPU
    python experiments/benchmarks/gpu.py --size tiny
    python experiments/benchmarks/gpu.py --only One-shot   the parts of such a name, and what they need

Needs torch and transformers alone, and no network: weights and tokens are random. Screening needs SciPy too. It prints
a table and keeps it in experiments/benchmarks/gpu/ under the device's name, as JSON and as text, after every part. It
ends within `--minutes`: long parts stop at a shard, and say how many they have measured.

The one-shot parts run on weights and tokens that are made to be predictable: each token asks for one other, most tokens
of a sample are followed by that, and layers disturb it more or less. So masks differ in what they lose, as screening
needs it. How much it saves on a real model and text is another matter; a time follows from the share that was left.
"""

import argparse
import importlib.metadata
import json
import multiprocessing
import platform
import queue
import re
import shutil
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import rooms  # noqa: F401  # isort: skip
import numpy as np
import torch
from mfu import Shape, calibration_of, matrix_peak, random_batch, random_llama, seconds, utilisation, work_of
from walk_vs_loop import by_sample

from raysearch.calibration.batch import Batch, Choices
from raysearch.calibration.calibration import Calibration
from raysearch.calibration.objectives.base import StateObjective, token_log_probs
from raysearch.calibration.objectives.kl import KLObjective
from raysearch.calibration.objectives.task_margin import TaskMarginObjective
from raysearch.core.mask import Mask
from raysearch.core.site import Run
from raysearch.core.statistic import Statistic
from raysearch.errors import UserError
from raysearch.evaluation.prefix import naive_layer_forwards, plan_prefixes
from raysearch.evaluation.replica import Replica
from raysearch.evaluation.unit import MaskUnit, StatisticUnit
from raysearch.models.devices import check_fused_head
from raysearch.models.stack import LayerStack, predicting
from raysearch.models.verification import verify


@dataclass(frozen=True)
class Size:
    """What is run: a shape, and calibrations of it."""

    shape: Shape
    dtype: torch.dtype
    samples: int
    seq_len: int
    shard_samples: int
    other_shards: tuple[int, ...]  # samples
    remove: int  # layers, by the one-shot searches


SIZES = {
    "8b": Size(Shape(), torch.bfloat16, 64, 2048, 4, (1, 2, 8, 16), 5),
    "tiny": Size(Shape(64, 4, 512, 16, 2), torch.float32, 16, 32, 2, (1, 3), 1),
}


PROCESSES_ON_CPU = 2  #: that stand for several GPUs where there is none


@dataclass
class Report:
    """Facts by part, kept after each.

    Args:
        only: What the titles of parts begin with that are done; all others are left out.
    """

    folder: Path
    device: str
    started: float
    versions: dict[str, str]
    only: str = ""
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, part: str, work: Callable[[], dict[str, Any]], device: str) -> bool:
        """Run a part, and keep its results and its time; return whether it succeeded. A failure is kept, too."""
        if not part.startswith((self.only, "Model")):
            return False
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        try:
            facts = work()
        except Exception as error:  # later parts may still succeed
            facts = {"failed": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
        if device == "cuda":
            facts["peak memory, GiB"] = torch.cuda.max_memory_allocated() / 2**30
        self.parts[part] = {**facts, "part took, s": time.perf_counter() - began}
        print("\n".join(self.lines(part)), flush=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"[^a-z0-9]+", "-", self.device.lower()).strip("-")
        whole = {"device": self.device, **self.versions, "minutes": self.minutes, "parts": self.parts}
        (self.folder / f"{name}.json").write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
        table = [line for each in self.parts for line in self.lines(each)]
        head = [self.device, *(f"{key} {value}" for key, value in self.versions.items())]
        (self.folder / f"{name}.txt").write_text("\n".join([*head, *table]) + "\n", encoding="utf-8")
        return "failed" not in facts

    @property
    def minutes(self) -> float:
        return (time.perf_counter() - self.started) / 60

    def lines(self, part: str) -> list[str]:
        shown = {key: f"{value:,.4g}" if isinstance(value, float) else value for key, value in self.parts[part].items()}
        return [part, *(f"  {key:<44} {value}" for key, value in shown.items() if key != "traceback")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], help="a GPU if torch sees one; cpu where it should not")
    parser.add_argument("--size", choices=SIZES, help="8b on a GPU, else tiny")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--only", default="", help="what the titles of the parts begin with")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "gpu")
    options = parser.parse_args()
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers")}
    versions["CUDA of torch"] = str(torch.version.cuda)
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if options.device is None and device == "cpu" and (shutil.which("nvidia-smi") or Path("/dev/nvidia0").exists()):
        parser.error(
            f"here is an NVIDIA GPU, which torch {versions['torch']} (CUDA {torch.version.cuda}) cannot use; "
            "name a Python whose torch can (make gpu GPU_PYTHON=…), see that the driver fits it, or give --device cpu"
        )
    torch.set_num_threads(1)
    size = SIZES[options.size or ("8b" if device == "cuda" else "tiny")]
    name = torch.cuda.get_device_name() if device == "cuda" else f"CPU {platform.machine()}"
    report = Report(options.out, name, time.perf_counter(), versions, options.only)
    deadline = time.perf_counter() + 60 * options.minutes - 20

    report.add("CPU and this device, float32", lambda: same_losses(device), device)
    report.add("CPU and this device, other work", lambda: same_work(device), device)
    models: list[Any] = []
    if not report.add("Model", lambda: models.append(random_llama(size.shape, size.dtype, device)) or {}, device):
        raise SystemExit(f"no model of this size can be made here; kept in {options.out}")
    (model,) = models
    stack = LayerStack(model)
    replica = Replica(stack)
    batch = random_batch(size.shape.vocabulary, size.samples, size.seq_len)
    calibration = calibration_of(batch, size.shard_samples)
    replica.calibrations[calibration.fingerprint] = calibration
    masks = tuple(Mask.of(layer) for layer in range(size.shape.layers))
    middle = masks[len(masks) // 2 - 2 : len(masks) // 2 + 2]
    shard = calibration.shards[0]

    report.add("Walk and plain loop, bit for bit", lambda: same_bits(replica, calibration, middle), device)
    report.add("Against other ways, one shard", lambda: against(replica, calibration, masks, device), device)
    report.add("Matrix peak used", lambda: used(replica, calibration, middle, device), device)
    report.add("Head", lambda: head(stack, shard, device), device)
    fuses = report.add("Head, model.fused_head", lambda: fused_head(stack, shard, device), device)
    fuses = fuses and not fused_head_lacks(device)
    report.add("Layer", lambda: layer(stack, shard, device), device)
    ways = {"One-shot": stack}
    compiles = False
    if device == "cuda" and not any(map(shutil.which, ("gcc", "clang"))):
        report.add("model.compile", lambda: {"not here": "it needs gcc or clang"}, device)
    elif device == "cuda":
        compiled = LayerStack(model, compiled=True)
        compiles = report.add("model.compile", lambda: compiled_masks(replica, compiled, calibration, middle), device)
        report.add("Head, model.compile", lambda: head(compiled, shard, device), device)
        if compiles:
            ways["One-shot, model.compile"] = compiled
    if fuses:
        title = f"One-shot, {'model.compile and ' if compiles else ''}model.fused_head"
        ways[title] = LayerStack(model, compiled=compiles, fused_head=True)
    for samples in size.other_shards:
        cut = calibration_of(batch, samples)
        title = f"Shards of {samples} x {size.seq_len} tokens"
        report.add(title, lambda cut=cut: used(replica, cut, middle, device), device)
    report.add("Several replicas", lambda: several_replicas(size, stack, masks, device, deadline), device)
    text = predictable(model, size)
    calibration = calibration_of(text, size.shard_samples)
    losses: dict[Mask, float] = {}
    for n_left, (title, way) in zip(range(len(ways) + 1, 1, -1), ways.items(), strict=True):
        until = time.perf_counter() + (deadline - time.perf_counter()) / n_left
        report.add(title, lambda way=way, until=until: one_shot(way, calibration, masks, device, until, losses), device)
    title, way = [*ways.items()][-1]
    title = title.replace("One-shot", "One-shot, screening=confident")
    report.add(title, lambda: screened_one_shot(way, calibration, masks, size.remove, deadline, losses), device)
    print(f"{report.minutes:.1f} minutes; kept in {options.out}")
    failed = [part for part, facts in report.parts.items() if "failed" in facts]
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def evaluate(replica: Replica, calibration: Calibration, masks: tuple[Mask, ...], shard: int = 0) -> dict[Any, Any]:
    return dict(replica.evaluate(MaskUnit(calibration.fingerprint, shard, masks)).values)


def same_losses(device: str) -> dict[str, Any]:
    """Compare the losses of a small model on the CPU and on the device, in float32, and their difference with TF32."""
    masks = (Mask(), *(Mask.of(layer) for layer in range(8)))
    calibration = calibration_of(random_batch(4096, 4, 64), 4)

    def losses(where: str, tf32: bool = False) -> dict[Any, Any]:
        torch.backends.cuda.matmul.allow_tf32 = tf32
        model = random_llama(Shape(256, 8, 4096, 64, 2), torch.float32, "cpu").to(where)
        return evaluate(Replica(LayerStack(model), [calibration]), calibration, masks)

    def gap(losses_by_mask: dict[Any, Any]) -> float:
        return max(float(np.abs(losses_by_mask[mask] / own[mask] - 1).max()) for mask in masks)

    own = losses("cpu")
    facts = {"largest relative difference": gap(losses(device))}
    if device == "cuda":
        facts["the same in TF32"] = gap(losses(device, tf32=True))
        torch.backends.cuda.matmul.allow_tf32 = False
    return checked(facts, facts["largest relative difference"] <= 1e-6)


def same_work(device: str) -> dict[str, Any]:
    """Compare packed choices, divergences, gradients and generated tokens of a small model on both devices."""
    rng = np.random.default_rng(1)
    prompts = [rng.integers(3, 512, 12).tolist() for _ in range(4)]
    rows = [prompt + rng.integers(3, 512, 2 + answer).tolist() for prompt in prompts for answer in range(3)]
    scored = [[False] * 12 + [True] * (len(row) - 12) for row in rows]
    item = np.repeat(np.arange(4), 3)
    choices = Batch.of(rows, scored, Choices(item, np.arange(12) % 3 == 0, np.ones(12, np.int64)))
    items = Calibration.create(TaskMarginObjective(), choices, 4, {}, {})
    text = Calibration.create(KLObjective(), random_batch(512, 4, 32), 4, {}, {})
    plain = calibration_of(random_batch(512, 4, 32), 4)
    masks = tuple(Mask.of(layer) for layer in range(4))
    parts: dict[str, list[Any]] = {}
    for where in ("cpu", device):
        model = random_llama(Shape(64, 4, 512, 16, 2), torch.float32, "cpu").to(where)
        replica = Replica(LayerStack(model), [items, text, plain])
        parts.setdefault("margin of packed choices", []).append([*evaluate(replica, items, masks).values()])
        parts.setdefault("KL divergence", []).append([*evaluate(replica, text, masks).values()])
        gates = replica.evaluate(StatisticUnit(plain.fingerprint, 0, Statistic.GATE_GRADIENTS)).values
        parts.setdefault("gradients of gates", []).append([*gates.values()])
        ids = torch.tensor([prompts[0]], device=where)
        with replica.stack.bypassed(masks[1]) as pruned, torch.no_grad():
            written = pruned.generate(ids, max_new_tokens=8, do_sample=False, pad_token_id=0)
        parts.setdefault("written tokens", []).append([written.cpu().numpy().astype(float)])
    gaps = {name: max(relative(*pair) for pair in zip(*by_device, strict=True)) for name, by_device in parts.items()}
    return checked(gaps, max(gaps.values()) <= 1e-4)


def relative(reference: Any, other: Any) -> float:
    """Return the largest difference of two arrays, relative to the largest number of the first."""
    return float(np.abs(reference - other).max() / np.abs(reference).max())


@torch.no_grad()
def same_bits(replica: Replica, calibration: Calibration, masks: tuple[Mask, ...]) -> dict[str, Any]:
    """Compare the walk with each mask by itself through the same layers and head, and with the model's own forward."""
    stack, shard = replica.stack, calibration.shards[0]
    walked = evaluate(replica, calibration, masks)
    captured, objective = stack.capture(shard.inputs), calibration.objective
    assert isinstance(objective, StateObjective)
    equal, gap = 0, 0.0
    for mask in masks:
        states = predicting(stack.walk(captured, mask), shard.inputs)
        direct = objective.losses(states, shard, stack, None).cpu().numpy()
        equal += direct.tobytes() == walked[mask].tobytes()
        gap = max(gap, float(np.abs(walked[mask] / by_sample(stack.model, mask, shard) - 1).max()))
    facts = {"masks with the same bits": f"{equal} of {len(masks)}", "largest difference from a forward": gap}
    return checked(facts, equal == len(masks))


def against(replica: Replica, calibration: Calibration, masks: tuple[Mask, ...], device: str) -> dict[str, Any]:
    """Time the walk, a forward for each mask, and, as in SLEB, a forward for each mask and sample."""
    stack, shard = replica.stack, calibration.shards[0]
    tried = masks[:: max(1, len(masks) // 8)]  # a forward takes as long for one layer removed as for another
    evaluate(replica, calibration, masks[:2])
    walk = seconds(lambda: evaluate(replica, calibration, masks), device)
    loop = seconds(lambda: [loop_losses(stack, mask, shard) for mask in tried], device) * len(masks) / len(tried)
    sleb = seconds(lambda: [by_sample(stack.model, mask, shard) for mask in tried], device) * len(masks) / len(tried)
    plan = plan_prefixes(masks, stack.sites)
    return {
        "masks": len(masks),
        "tokens": f"{shard.input_ids.shape[0]} x {shard.input_ids.shape[1]}",
        "layer-forwards, loop / walk": naive_layer_forwards(masks, stack.sites) / plan.layer_forwards,
        "walk, s": walk,
        "loop, s": loop,
        "as SLEB, s": sleb,
        "loop / walk": loop / walk,
        "SLEB / walk": sleb / walk,
    }


@torch.no_grad()
def loop_losses(stack: LayerStack, mask: Mask, shard: Batch) -> Any:
    """Run all kept layers for each mask, and the head in chunks: memory does not hold the logits of a whole shard."""
    states = predicting(stack.walk(stack.capture(shard.inputs), mask), shard.inputs)
    return token_log_probs(states, shard, stack).cpu()


def used(replica: Replica, calibration: Calibration, masks: tuple[Mask, ...], device: str) -> dict[str, Any]:
    """Compare the FLOP/s of a walk with the best matrix product."""
    rate, peak = utilisation(replica, calibration, masks, device, repeats=2)
    at_once = replica.evaluate(MaskUnit(calibration.fingerprint, 0, masks[:1])).samples_at_once
    shares = {"walk, TFLOP/s": rate / 1e12, "matrix peak, TFLOP/s": peak / 1e12, "share of the peak": rate / peak}
    return shares if at_once is None else {**shares, "memory holds samples": at_once}


@torch.no_grad()
def layer(stack: LayerStack, shard: Batch, device: str) -> dict[str, Any]:
    """Time a layer."""
    captured = stack.capture(shard.inputs)
    taken = best(lambda: stack.run(Run(0), captured.embedded, captured), device)
    without = captured.calls[0].kwargs.get("attention_mask") is None
    return {"attention without a mask tensor": without, "layer, s": taken}


def compiled_masks(
    replica: Replica, compiled: LayerStack, calibration: Calibration, masks: tuple[Mask, ...]
) -> dict[str, Any]:
    """Time some masks with `model.compile=true`, and compare their losses."""
    device = replica.stack.model.device.type
    plain = evaluate(replica, calibration, masks)
    began = time.perf_counter()
    other = Replica(compiled, [calibration])
    first = evaluate(other, calibration, masks)
    return {
        "masks": len(masks),
        "compiled, to the first losses, s": time.perf_counter() - began,
        "plain, s": best(lambda: evaluate(replica, calibration, masks), device),
        "compiled, s": best(lambda: evaluate(other, calibration, masks), device),
        "largest relative difference": max(relative(plain[mask], first[mask]) for mask in masks),
    }


@torch.no_grad()
def head(stack: LayerStack, shard: Batch, device: str) -> dict[str, Any]:
    """Time the head on a shard, and return its share of the matrix peak."""
    states = predicting(stack.capture(shard.inputs).embedded.hidden, shard.inputs)
    with stack.compiling():
        return time_of_head(states, lambda: token_log_probs(states, shard, stack), stack, device)


@torch.no_grad()
def fused_head(stack: LayerStack, shard: Batch, device: str) -> dict[str, Any]:
    """Time the fused kernel of the head, and compare the log-probabilities; a repetition must give the same bits."""
    if lacks := fused_head_lacks(device):
        return {"not here": lacks}
    states = predicting(stack.capture(shard.inputs).embedded.hidden, shard.inputs)
    plain = token_log_probs(states, shard, stack)
    stack = LayerStack(stack.model, fused_head=True)
    verify(stack)
    fused, repeated = (token_log_probs(states, shard, stack) for _ in range(2))
    facts = time_of_head(states, lambda: token_log_probs(states, shard, stack), stack, device)
    facts["largest difference of a token, nats"] = float((fused - plain).abs().max())
    facts["difference of the mean, nats"] = float((fused - plain).mean())
    return checked(facts, torch.equal(fused, repeated))


def time_of_head(states: torch.Tensor, work: Callable[[], Any], stack: LayerStack, device: str) -> dict[str, Any]:
    taken = best(work, device)
    least = 2 * len(states) * states.shape[1] * stack.vocab_size / matrix_peak(states.dtype, device)
    return {"at the matrix peak, s": least, "head, s": taken, "share of the peak": least / taken}


def fused_head_lacks(device: str) -> str:
    """Return why the fused head cannot be measured here; empty if it can be."""
    try:
        check_fused_head(device)
    except UserError as error:
        return str(error)
    return ""


def best(work: Callable[[], Any], device: str) -> float:
    work()
    return min(seconds(work, device) for _ in range(3))


@torch.no_grad()
def predictable(model: Any, size: Size) -> Batch:
    """Have a random model predict one token after each, and return samples that mostly follow it.

    The head has for each token the embedding of the one before it. Layers add noise to that, of one strength each; what
    removing one changes differs by sample, since so does the share of surprising tokens.
    """
    vocabulary, width = model.lm_head.weight.shape
    rng = np.random.default_rng(2)
    embedding = model.model.embed_tokens.weight
    embedding.normal_(generator=torch.Generator(embedding.device).manual_seed(2))
    model.lm_head.weight.copy_(embedding.roll(1, dims=0) * (12 / width))
    gate = 0.02 * width**0.5  # the spread of a gate, by that of random weights; then that of what an MLP adds
    added = gate**2 / 2 * 0.02 * model.config.intermediate_size**0.5
    for layer, strength in zip(model.model.layers, rng.lognormal(-1.5, 0.5, size.shape.layers), strict=True):
        layer.mlp.down_proj.weight.mul_(float(strength / added))
    ids = rng.integers(0, vocabulary, (size.samples, size.seq_len))
    follows = rng.random(ids.shape) < rng.uniform(0.5, 1, (size.samples, 1))
    for place in range(1, size.seq_len):
        ids[:, place] = np.where(follows[:, place], (ids[:, place - 1] + 1) % vocabulary, ids[:, place])
    scored = np.ones_like(ids, dtype=bool)
    scored[:, 0] = False
    return Batch(ids, scored)


def one_shot(
    stack: LayerStack,
    calibration: Calibration,
    masks: tuple[Mask, ...],
    device: str,
    deadline: float,
    losses: dict[Mask, float],
) -> dict[str, Any]:
    """Evaluate all single layers on as many shards as the time allows; `losses` receives the sums over all shards."""
    replica = Replica(stack, [calibration])
    peak = matrix_peak(stack.model.dtype, device)
    evaluate(replica, calibration, masks[:1])
    spent: list[float] = []
    sums = dict.fromkeys(masks, 0.0)
    for shard in range(calibration.n_shards):
        if spent and time.perf_counter() + max(spent) > deadline:
            break
        began = time.perf_counter()
        for mask, values in evaluate(replica, calibration, masks, shard).items():
            sums[mask] += float(values.sum())
        spent.append(time.perf_counter() - began)
    if len(spent) == calibration.n_shards:
        losses.update(sums)
    return {
        "masks": len(masks),
        "tokens": f"{calibration.n_samples} x {calibration.shards[0].input_ids.shape[1]}",
        "shards measured": f"{len(spent)} of {calibration.n_shards}",
        "whole calibration, s": sum(spent) * calibration.n_shards / len(spent),
        "share of the peak": work_of(stack, masks, calibration.shards[0]) / peak * len(spent) / sum(spent),
    }


def screened_one_shot(
    stack: LayerStack,
    calibration: Calibration,
    masks: tuple[Mask, ...],
    remove: int,
    deadline: float,
    losses: dict[Mask, float],
) -> dict[str, Any]:
    """Evaluate the same masks with screening, to remove so many layers; `losses` are those without screening."""
    try:
        from raysearch.evaluation.screening import Screener, Screening
        from raysearch.searchers.base import Round
    except ModuleNotFoundError as error:
        return {"not here": f"it needs {error.name}"}
    replica = Replica(stack, [calibration])
    evaluate(replica, calibration, masks[:1])
    began = time.perf_counter()
    screener = Screener(Screening(), [calibration], stack.sites)
    contest = screener.contest(Round(masks, keep=remove, exact=False))
    if contest is None:
        return {"not here": "too few samples or masks"}
    losses_by_shard: dict[Mask, dict[int, Any]] = {mask: {} for mask in masks}
    remaining = {*masks}
    forwards = 0
    for stage, shards in enumerate(screener.stages):
        for shard in shards[calibration.fingerprint]:
            new = tuple(sorted(mask for mask in remaining if shard not in losses_by_shard[mask]))
            if new and time.perf_counter() > deadline:
                return {"stopped": f"no time was left at stage {stage + 1} of {len(screener.stages)}"}
            for mask, values in (evaluate(replica, calibration, new, shard) if new else {}).items():
                losses_by_shard[mask][shard] = values
            forwards += plan_prefixes(new, stack.sites).layer_forwards
        screener.see(remaining, stage, {calibration.fingerprint: losses_by_shard})
        if stage < len(screener.stages) - 1:
            contest.decide()
            remaining -= contest.dropped | contest.accepted
    facts = {
        "masks": len(masks),
        "whole calibration, s": time.perf_counter() - began,
        "masks evaluated in full": len(remaining),
        "share of the layer-forwards": forwards
        / (plan_prefixes(masks, stack.sites).layer_forwards * calibration.n_shards),
    }
    sums = {mask: sum(float(values.sum()) for values in losses_by_shard[mask].values()) for mask in remaining}
    best = sorted(remaining, key=lambda mask: (sums[mask], mask))
    chosen = {*contest.accepted, *best[: remove - len(contest.accepted)]}
    if not losses:
        return {**facts, "the unscreened mask": "not known: there was no time for it"}
    unscreened = {*sorted(losses, key=lambda mask: (losses[mask], mask))[:remove]}
    facts["the unscreened mask"] = chosen == unscreened
    return checked(facts, chosen == unscreened)


def several_replicas(
    size: Size, stack: LayerStack, masks: tuple[Mask, ...], device: str, deadline: float
) -> dict[str, Any]:
    """Evaluate all single layers by a replica on each GPU; replicas are processes, since Ray may be missing."""
    devices = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    if device == "cpu":
        devices = ["cpu"] * PROCESSES_ON_CPU
    if len(devices) < 2:
        return {"not here": f"there is one {device} device"}
    calibration = calibration_of(random_batch(size.shape.vocabulary, size.samples, size.seq_len), size.shard_samples)
    replica = Replica(stack, [calibration])
    evaluate(replica, calibration, masks[:1])
    began = time.perf_counter()
    own_losses = evaluate(replica, calibration, masks)
    alone_s = time.perf_counter() - began
    n_shards = min(calibration.n_shards, max(1, int((deadline - time.perf_counter()) / 3 / alone_s * len(devices))))
    spawning = multiprocessing.get_context("spawn")
    shards: Any = spawning.Queue()
    answers: Any = spawning.Queue()
    processes = [
        spawning.Process(target=be_replica, args=(size, where, masks, shards, answers), daemon=True)
        for where in devices
    ]
    began = time.perf_counter()
    try:
        for process in processes:
            process.start()
        for _ in processes:
            next_answer(answers, processes)  # it has loaded the model
        started_s = time.perf_counter() - began
        began = time.perf_counter()
        for shard in [*range(n_shards), *[None] * len(processes)]:
            shards.put(shard)
        losses_by_shard = dict(next_answer(answers, processes) for _ in range(n_shards))
        taken_s = time.perf_counter() - began
    finally:
        for process in processes:
            process.kill()
            process.join()
    equal = sum(losses_by_shard[0][mask].tobytes() == own_losses[mask].tobytes() for mask in masks)
    return checked(
        {
            "replicas": len(devices),
            "shards measured": f"{n_shards} of {calibration.n_shards}",
            "until all have loaded, s": started_s,
            "one replica, a shard, s": alone_s,
            "all replicas, these shards, s": taken_s,
            "share of the ideal": alone_s * n_shards / len(devices) / taken_s,
            "masks with the same bits": f"{equal} of {len(masks)}",
        },
        equal == len(masks),
    )


def be_replica(size: Size, where: str, masks: tuple[Mask, ...], shards: Any, answers: Any) -> None:
    """Load the model, and answer shards from a queue until there is a None; the first answer is a None, too."""
    torch.set_num_threads(1)
    if where != "cpu":
        torch.cuda.set_device(where)
    calibration = calibration_of(random_batch(size.shape.vocabulary, size.samples, size.seq_len), size.shard_samples)
    replica = Replica(LayerStack(random_llama(size.shape, size.dtype, where)), [calibration])
    evaluate(replica, calibration, masks[:1])
    answers.put(None)
    while (shard := shards.get()) is not None:
        answers.put((shard, evaluate(replica, calibration, masks, shard)))


def next_answer(answers: Any, processes: Sequence[Any]) -> Any:
    """Return the next answer of processes that are alive.

    Raises:
        RuntimeError: One of them has failed, which would be waited for for ever.
    """
    while True:
        with suppress(queue.Empty):
            return answers.get(timeout=1)
        if codes := [process.exitcode for process in processes if process.exitcode]:
            raise RuntimeError(f"a replica's process has ended with {codes[0]}")


def checked(facts: dict[str, Any], holds: bool) -> dict[str, Any]:
    return facts if holds else {**facts, "failed": "not equal"}


if __name__ == "__main__":
    main()
