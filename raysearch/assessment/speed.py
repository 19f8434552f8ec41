"""Speed and memory of masks beside the dense model, by one replica in one run, taken in turn.

The dense model is timed before each mask, every time, so that what slows a machine down slows both. Errors are those of
a median over the repeats.

One sequence is generated, as in "On the Limits of Layer Pruning", A.9. The time to the first new token is prefill; that
between the first and the last is decoding. Tokens do not change the time, so those of the prompt are drawn at random.
"""

from __future__ import annotations

import ctypes
import gc
import platform
import resource
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.streamers import BaseStreamer
from typing_extensions import override

from raysearch.assessment.context import AssessContext, Assessed
from raysearch.assessment.results import Result
from raysearch.assessment.spec import SpeedOptions
from raysearch.core.estimate import Estimate, Metric, error_of_median
from raysearch.core.formatting import count
from raysearch.core.mask import Mask
from raysearch.evaluation.pool import done_jobs
from raysearch.evaluation.replica import Replica
from raysearch.evaluation.unit import Job
from raysearch.generation.decoding import explained
from raysearch.models.devices import processor
from raysearch.models.loading import quiet
from raysearch.models.spec import ModelInfo

_LOW_TOKENS = 1000  # drawn from the low ids: special ones sit at the top
_PROC = Path("/proc/self")

DECODE = Metric("decode_tokens_per_s", "decoding", "speed", "tokens/s", higher_is_better=True)
PREFILL = Metric("prefill_tokens_per_s", "prefill", "speed", "tokens/s", higher_is_better=True)
MEMORY = Metric("peak_memory_bytes", "peak memory", "speed", "bytes", higher_is_better=False)


@dataclass(frozen=True)
class SpeedJob(Job):
    """A job that times some masks in turn, the dense model before each."""

    masks: tuple[Mask, ...]
    options: SpeedOptions

    @override
    def run(self, replica: Replica) -> dict[Mask, dict[str, Any]]:
        """Time the masks.

        Returns:
            By mask, the dense one too: the medians, in tokens/s and bytes, each repeat, the same of the dense model
            beside it as ``dense``, and what they were measured on.
        """
        stack, options = replica.stack, self.options
        others = [mask for mask in dict.fromkeys(self.masks) if mask]
        order = [one for mask in others for one in (Mask(), mask)] or [Mask()]

        def timed(mask: Mask) -> _Timing:
            with stack.bypassed(mask) as model, explained(model, "assess.speed.enabled=false"):
                return _time(model, stack.vocab_size, options)

        def memory_of(mask: Mask) -> dict[str, Any]:
            peak = PeakMemory.of(one.device for one in stack.model.parameters())
            timed(mask)
            working = peak.growth()
            weights = _weights_bytes(stack.model, [stack.layers[layer] for layer in mask])
            sizes = {MEMORY.name: weights + working, "weights_bytes": weights, "working_bytes": working}
            return {**sizes, "memory_source": peak.source}

        timings: dict[Mask, list[_Timing]] = {mask: [] for mask in (Mask(), *others)}
        with torch.no_grad(), quiet():  # not inference mode: what a model caches must serve a gradient too
            for mask in order:  # to warm up
                timed(mask)
            memory = {mask: memory_of(mask) for mask in order}
            for mask in order * options.repeats:
                timings[mask].append(timed(mask))
        whole = timings[Mask()]
        beside = {mask: whole[place :: len(others)] for place, mask in enumerate(others)} | {Mask(): whole}
        about = {"machine": machine(stack.model.device), "threads": torch.get_num_threads()}
        found = {}
        for mask, own in timings.items():
            dense = _summary(beside[mask], memory[Mask()], options)
            found[mask] = {**_summary(own, memory[mask], options), "dense": dense, "measured_on": str(mask), **about}
        return found

    def __str__(self) -> str:
        return f"the speed of {len(self.masks)} mask(s)"


def alike(mask: Mask, info: ModelInfo) -> Mask:
    """Return a mask of the same speed: as many of the last layers, where all have one size; else the mask itself."""
    same_size = len(set(info.layer_parameters)) == 1
    return Mask.of(*range(info.n_layers - len(mask), info.n_layers)) if same_size else mask


def measure_speeds(context: AssessContext) -> Assessed:
    """Return the speed and memory of the masks that stand for these, if they are asked for."""
    plan, masks, options = context.plan, context.masks, context.plan.spec.speed
    if not options.enabled:
        return {mask: {} for mask in masks}, 0
    name = plan.named({"speed": vars(options), "machine": machine(torch.device(plan.info.model.device))})
    stand_ins = {mask: alike(mask, plan.info) for mask in masks}
    asked = list(dict.fromkeys(stand_ins.values()))
    known, measured = plan.known(context.ledger, name, asked), 0
    if set(asked) - set(known):  # then all of them, for speeds of one run alone compare
        context.on_progress(f"speed: {count(len(asked), 'model')} in turn")
        ((_, (_, known)),) = done_jobs([SpeedJob(tuple(asked), options)], context.make_pool)
        context.keep(name, known)
        measured = len(asked)
    return {mask: speed_results(known[stand_ins[mask]]) for mask in masks}, measured


def speed_results(found: Mapping[str, Any]) -> dict[str, Result]:
    """Return the numbers of one mask, each beside the dense model's of the same run."""
    extent = f"{found['context_tokens']} + {found['new_tokens']} tokens, median of {found['repeats']}"
    results = {}
    for metric, tokens, key in (
        (DECODE, found["new_tokens"] - 1, "decode_s"),
        (PREFILL, found["context_tokens"], "prefill_s"),
        (MEMORY, 0, ""),  # which is measured once
    ):
        value, dense = found[metric.name], found["dense"][metric.name]
        speeds, of_dense = ([tokens / time_s for time_s in one.get(key, ())] for one in (found, found["dense"]))
        ratios = [speed / other for speed, other in zip(speeds, of_dense, strict=True)]
        estimate, beside = Estimate(value, error_of_median(speeds)), Estimate(value / dense, error_of_median(ratios))
        detail = {**found, "dense": dense, "dense_error": error_of_median(of_dense)}
        results[metric.name] = Result(metric, estimate, beside, extent, detail)
    return results


def machine(device: torch.device) -> str:
    """Return the names of this host and of its processor or GPU, for which a speed holds."""
    if device.type == "cuda" and not torch.cuda.is_available():
        return "a cluster with GPUs"  # unknown to this host
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
    return f"{platform.node()}, {name}"


@dataclass(frozen=True)
class _Timing:
    prefill_s: float
    decode_s: float


@dataclass
class _Clock(BaseStreamer):
    """A streamer that notes the time of each new token; transformers calls it with the prompt first."""

    device: torch.device
    ticks_s: list[float] = field(default_factory=list)

    @override
    def put(self, value: torch.Tensor) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.ticks_s.append(time.perf_counter())

    @override
    def end(self) -> None:
        pass


def _time(model: PreTrainedModel, vocab_size: int, options: SpeedOptions) -> _Timing:
    """Generate once from a prompt of random tokens."""
    generator = torch.Generator().manual_seed(0)
    prompt = torch.randint(min(vocab_size, _LOW_TOKENS), (1, options.context_tokens), generator=generator)
    prompt = prompt.to(model.device)
    settings = GenerationConfig(
        max_new_tokens=options.new_tokens, min_new_tokens=options.new_tokens, do_sample=False, pad_token_id=0
    )
    clock = _Clock(model.device)
    clock.put(prompt)  # the start, before transformers does so itself
    model.generate(  # type: ignore[operator]
        prompt,
        attention_mask=torch.ones_like(prompt),
        generation_config=settings,
        streamer=clock,
        use_cache=True,
    )
    started, _, first, *_, last = clock.ticks_s
    return _Timing(first - started, last - first)


def _summary(timings: Sequence[_Timing], memory: Mapping[str, Any], options: SpeedOptions) -> dict[str, Any]:
    prefill_s = [one.prefill_s for one in timings]
    decode_s = [one.decode_s for one in timings]
    return {
        DECODE.name: (options.new_tokens - 1) / median(decode_s),
        PREFILL.name: options.context_tokens / median(prefill_s),
        **memory,
        "prefill_s": prefill_s,
        "decode_s": decode_s,
        "context_tokens": options.context_tokens,
        "new_tokens": options.new_tokens,
        "repeats": len(timings),
    }


@dataclass(frozen=True)
class PeakMemory:
    """The peak of memory since this was made, on all GPUs that a model is spread over; of the process without one."""

    gpus: tuple[torch.device, ...]
    before_bytes: int
    source: str

    @classmethod
    def of(cls, devices: Iterable[torch.device]) -> PeakMemory:
        """Start a measurement on a model's devices: earlier peaks are forgotten."""
        gpus = tuple({device for device in devices if device.type == "cuda"})
        for gpu in gpus:
            torch.cuda.synchronize(gpu)
            torch.cuda.reset_peak_memory_stats(gpu)
        if gpus:
            return cls(gpus, sum(map(torch.cuda.memory_allocated, gpus)), "torch.cuda.max_memory_allocated")
        gc.collect()
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)  # glibc: what was freed goes back, or its reuse would not be seen
        with suppress(OSError):
            (_PROC / "clear_refs").write_text("5")  # Linux: the peak starts anew
            return cls(gpus, _resident("VmRSS"), "VmHWM")
        return cls(gpus, _peak_bytes(), "ru_maxrss: growth over the process's earlier peak alone, so a lower bound")

    def peak(self) -> int:
        """Return the peak since then, in bytes."""
        if self.gpus:
            return sum(map(torch.cuda.max_memory_allocated, self.gpus))
        return _resident("VmHWM") if self.source == "VmHWM" else _peak_bytes()

    def growth(self) -> int:
        """Return the peak since then, less what was in use before, in bytes."""
        return max(0, self.peak() - self.before_bytes)


def _resident(name: str) -> int:
    """Return a line of this process's memory, in bytes."""
    lines = (_PROC / "status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def _peak_bytes() -> int:
    """Return the most memory that this process has had."""
    unit = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _weights_bytes(model: PreTrainedModel, removed: Sequence[torch.nn.Module]) -> int:
    """Return the bytes of weights and buffers without some layers; shared ones count once."""
    gone = {id(tensor) for layer in removed for tensor in (*layer.parameters(), *layer.buffers())}
    held = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers()) if id(tensor) not in gone}
    return sum(tensor.numel() * tensor.element_size() for tensor in held.values())
