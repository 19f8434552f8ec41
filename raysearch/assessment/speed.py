"""Speed, memory and KV cache of masks and of the dense model, measured in turn by one replica in one run.

The dense model is timed again before each mask, so that a slower machine slows both. Errors are those of a median over
the repeats.

Sequences are generated, one as in "On the Limits of Layer Pruning", A.9. Prefill is the time to the first new tokens;
decoding is the time from the first to the last new ones. Tokens do not change the time, so the prompts are random. The
KV cache is not measured, but counted.
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
from raysearch.core.estimate import Estimate, Metric
from raysearch.core.kv_cache import KvCache
from raysearch.core.mask import Mask
from raysearch.errors import UnsupportedModelError
from raysearch.evaluation.pool import done_jobs
from raysearch.evaluation.replica import Replica
from raysearch.evaluation.unit import Job
from raysearch.generation.decoding import explained
from raysearch.models.devices import processor
from raysearch.models.loading import quiet
from raysearch.searching.speed_options import SpeedOptions
from raysearch.stats.estimates import error_of_median
from raysearch.text.numbers import count

LOW_TOKENS = 1000  #: prompts use the lowest token ids, since special tokens have the highest
_PROC = Path("/proc/self")

DECODE = Metric("decode_tokens_per_s", "decoding", "speed", "tokens/s", higher_is_better=True)
PREFILL = Metric("prefill_tokens_per_s", "prefill", "speed", "tokens/s", higher_is_better=True)
MEMORY = Metric("peak_memory_bytes", "peak memory", "speed", "bytes", higher_is_better=False)
KV_CACHE = Metric("kv_cache_bytes", "KV cache", "speed", "bytes", higher_is_better=False)


@dataclass(frozen=True)
class SpeedJob(Job):
    """A job that times some masks in turn, the dense model before each.

    Args:
        masks: The masks.
        options: The lengths of the prompt and of the answer, and the number of repeats.
    """

    masks: tuple[Mask, ...]
    options: SpeedOptions

    @override
    def run(self, replica: Replica) -> dict[Mask, dict[str, Any]]:
        """Time the masks.

        Returns:
            By mask, also for the dense one: the medians, in tokens/s and bytes; the seconds of each repeat; the same
            numbers of the dense model timed next to it as ``dense``; and the mask and the machine on which they were
            measured. `raysearch.searching.speeds` adds such summaries up.
        """
        stack = replica.stack
        options = self.options
        pruned_masks = [mask for mask in dict.fromkeys(self.masks) if mask]
        order = [turn for mask in pruned_masks for turn in (Mask(), mask)] or [Mask()]

        def timed(mask: Mask) -> _Timing:
            with stack.bypassed(mask) as model, explained(model, "assess.speed.enabled=false"):
                return _time(model, stack.vocab_size, options)

        def memory_of(mask: Mask) -> dict[str, Any]:
            peak = PeakMemory.of(parameter.device for parameter in stack.model.parameters())
            timed(mask)
            working = peak.growth()
            weights = _weights_bytes(stack.model, stack.removed_tensors(mask))
            return {
                MEMORY.name: weights + working,
                "weights_bytes": weights,
                "working_bytes": working,
                "memory_source": peak.source,
            }

        timings: dict[Mask, list[_Timing]] = {mask: [] for mask in (Mask(), *pruned_masks)}
        with torch.no_grad(), quiet():  # not inference mode: tensors that a model caches may need gradients later
            for mask in order:  # as a warm-up
                timed(mask)
            memory = {mask: memory_of(mask) for mask in order}
            for mask in order * options.repeats:
                timings[mask].append(timed(mask))
        dense_timings = {Mask(): timings[Mask()]}
        for index, mask in enumerate(pruned_masks):
            dense_timings[mask] = timings[Mask()][index :: len(pruned_masks)]
        environment = {"machine": machine(stack.model.device), "threads": torch.get_num_threads()}
        summaries = {}
        for mask, mask_timings in timings.items():
            summaries[mask] = {
                **_summary(mask_timings, memory[mask], options),
                "dense": _summary(dense_timings[mask], memory[Mask()], options),
                "measured_on": str(mask),
                **environment,
            }
        return summaries

    def __str__(self) -> str:
        return f"the speed of {len(self.masks)} mask(s)"


def measure_speeds(context: AssessContext) -> Assessed:
    """Return the speed, memory and KV cache of the masks, if enabled.

    Masks with as many layers of each kind have the same speed, and are measured as one mask.
    """
    plan = context.plan
    masks = context.masks
    if not plan.spec.speed.enabled:
        return {mask: {} for mask in masks}, 0
    sites = plan.info.sites
    stand_ins = {mask: sites.of_same_speed(mask) for mask in masks}
    summaries, measured = speed_summaries(context, list(dict.fromkeys(stand_ins.values())))
    results = {mask: speed_results(summaries[stand_ins[mask]]) for mask in masks}
    kv_cache = _kv_cache(context)
    if kv_cache is not None:
        for mask in masks:
            size_bytes = kv_cache.size_without(mask, sites)
            results[mask][KV_CACHE.name] = _kv_result(kv_cache, size_bytes, kv_cache.size_without(Mask(), sites))
    return results, measured


def speed_summaries(context: AssessContext, masks: Sequence[Mask]) -> tuple[dict[Mask, dict[str, Any]], int]:
    """Return the numbers of masks that `SpeedJob` measures.

    Args:
        context: The plan, the ledger and the pool.
        masks: Distinct masks.

    Returns:
        The numbers by mask, and how many models were measured now.
    """
    plan = context.plan
    options = plan.spec.speed
    name = plan.named({"speed": options.identity, "machine": machine(torch.device(plan.info.model.device))})
    summaries = plan.recorded(context.ledger, name, masks)
    if not set(masks) - set(summaries):
        return summaries, 0
    # All of them are measured, since only speeds of one run are comparable.
    context.on_progress(f"speed: {count(len(masks), 'model')} in turn")
    ((_, (_, summaries)),) = done_jobs([SpeedJob(tuple(masks), options)], context.make_pool)
    context.record(name, summaries)
    return summaries, len(masks)


def _kv_cache(context: AssessContext) -> KvCache | None:
    """Return the KV cache of the dense model; None, with a line that says so, if it is not known."""
    from raysearch.models.kv_cache import kv_cache_of

    options = context.plan.spec.speed
    try:
        return kv_cache_of(context.plan.info, options.n_tokens, options.batch)
    except UnsupportedModelError as error:
        context.on_progress(f"speed: {error}")
        return None


def _kv_result(kv_cache: KvCache, size_bytes: int, dense_bytes: int) -> Result:
    extent = f"{kv_cache.n_sequences} × {kv_cache.n_tokens} tokens, counted"
    detail = {"dense": dense_bytes, "dense_error": None}
    return Result(KV_CACHE, Estimate(size_bytes), Estimate(size_bytes / dense_bytes), extent, detail)


def speed_results(summary: Mapping[str, Any]) -> dict[str, Result]:
    """Return the speed and memory of one mask, each with its ratio to the dense model's of the same run.

    Args:
        summary: The numbers of a mask that `SpeedJob.run` returns.
    """
    batch = summary["batch"]
    times = f"{batch} × " if batch > 1 else ""
    extent = f"{times}{summary['context_tokens']} + {summary['new_tokens']} tokens, median of {summary['repeats']}"
    results = {}
    for metric, tokens, key in (
        (DECODE, batch * (summary["new_tokens"] - 1), "decode_s"),
        (PREFILL, batch * summary["context_tokens"], "prefill_s"),
        (MEMORY, 0, ""),  # measured only once, so without errors
    ):
        value = summary[metric.name]
        dense = summary["dense"][metric.name]
        speeds = [tokens / time_s for time_s in summary.get(key, ())]
        dense_speeds = [tokens / time_s for time_s in summary["dense"].get(key, ())]
        ratios = [speed / dense_speed for speed, dense_speed in zip(speeds, dense_speeds, strict=True)]
        estimate = Estimate(value, error_of_median(speeds))
        retention = Estimate(value / dense, error_of_median(ratios))
        detail = {**summary, "dense": dense, "dense_error": error_of_median(dense_speeds)}
        results[metric.name] = Result(metric, estimate, retention, extent, detail)
    return results


def machine(device: torch.device) -> str:
    """Return the names of this host and of its processor or GPU, which identify the machine of a speed."""
    if device.type == "cuda" and not torch.cuda.is_available():
        return "a cluster with GPUs"  # this host does not know their names
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
    return f"{platform.node()}, {name}"


@dataclass(frozen=True)
class _Timing:
    prefill_s: float
    decode_s: float


@dataclass
class _Clock(BaseStreamer):
    """A streamer that records the time of each new token; transformers first calls it with the prompt."""

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
    """Generate once from prompts of random tokens."""
    generator = torch.Generator().manual_seed(0)
    shape = options.batch, options.context_tokens
    prompt = torch.randint(min(vocab_size, LOW_TOKENS), shape, generator=generator)
    prompt = prompt.to(model.device)
    settings = GenerationConfig(
        max_new_tokens=options.new_tokens, min_new_tokens=options.new_tokens, do_sample=False, pad_token_id=0
    )
    clock = _Clock(model.device)
    clock.put(prompt)  # the start; transformers puts the prompt only later
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
    prefill_s = [timing.prefill_s for timing in timings]
    decode_s = [timing.decode_s for timing in timings]
    return {
        DECODE.name: options.batch * (options.new_tokens - 1) / median(decode_s),
        PREFILL.name: options.batch * options.context_tokens / median(prefill_s),
        **memory,
        "prefill_s": prefill_s,
        "decode_s": decode_s,
        "latency_s": [timing.prefill_s + timing.decode_s for timing in timings],
        "batch": options.batch,
        "context_tokens": options.context_tokens,
        "new_tokens": options.new_tokens,
        "repeats": len(timings),
    }


@dataclass(frozen=True)
class PeakMemory:
    """The peak of memory since a start: on all GPUs of a model; without a GPU, of the process.

    Args:
        gpus: The GPUs of the model; empty without one.
        before_bytes: The memory in use at the start, in bytes.
        source: How the peak is measured.
    """

    gpus: tuple[torch.device, ...]
    before_bytes: int
    source: str

    @classmethod
    def of(cls, devices: Iterable[torch.device]) -> PeakMemory:
        """Start a measurement on a model's devices; earlier peaks are discarded."""
        gpus = tuple({device for device in devices if device.type == "cuda"})
        for gpu in gpus:
            torch.cuda.synchronize(gpu)
            torch.cuda.reset_peak_memory_stats(gpu)
        if gpus:
            return cls(gpus, sum(map(torch.cuda.memory_allocated, gpus)), "torch.cuda.max_memory_allocated")
        gc.collect()
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)  # glibc: return freed memory, since its reuse would not count as growth
        with suppress(OSError):
            (_PROC / "clear_refs").write_text("5")  # Linux: reset the peak
            return cls(gpus, _resident("VmRSS"), "VmHWM")
        return cls(gpus, _peak_bytes(), "ru_maxrss: growth over the process's earlier peak alone, so a lower bound")

    def peak(self) -> int:
        """Return the peak since the start, in bytes."""
        if self.gpus:
            return sum(map(torch.cuda.max_memory_allocated, self.gpus))
        return _resident("VmHWM") if self.source == "VmHWM" else _peak_bytes()

    def growth(self) -> int:
        """Return the peak since the start minus the memory in use at the start, in bytes."""
        return max(0, self.peak() - self.before_bytes)


def _resident(name: str) -> int:
    """Return a value of this process's ``status`` file, as ``VmRSS``, in bytes."""
    lines = (_PROC / "status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def _peak_bytes() -> int:
    """Return the peak memory of this process since it started, in bytes."""
    unit = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _weights_bytes(model: PreTrainedModel, removed: Sequence[torch.Tensor]) -> int:
    """Return the bytes of weights and buffers without removed ones; shared tensors count once."""
    removed_ids = {id(tensor) for tensor in removed}
    by_id = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return sum(tensor.numel() * tensor.element_size() for key, tensor in by_id.items() if key not in removed_ids)
