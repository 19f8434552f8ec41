"""A resident model that evaluates units: losses of masks on a shard, and statistics of the dense model.

A plain class: torch only, no Ray. Ray actors, the inline pool, tests and benchmarks all use this one.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import sys
import time
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from raysearch.calibration.batch import Batch, Form, Inputs
from raysearch.calibration.calibration import Calibration
from raysearch.calibration.objectives.base import ModelLosses, ModelObjective, Objective, StateObjective
from raysearch.calibration.packing import pack, packed_lengths
from raysearch.calibration.padding import cut_by_length
from raysearch.core.mask import Mask
from raysearch.core.statistic import Subject
from raysearch.errors import UserError
from raysearch.evaluation.costs import passes, plan_of
from raysearch.evaluation.prefix import Op, PrefixPlan
from raysearch.evaluation.unit import MaskUnit, StatisticUnit, Unit, UnitResult
from raysearch.generation.score import ScoredText
from raysearch.models.loading import load_model, load_tokenizer, spread
from raysearch.models.shared_weights import Detached, attach
from raysearch.models.spec import LocatedModel
from raysearch.models.stack import LayerStack, predicting
from raysearch.models.statistics import measure
from raysearch.models.verification import packs, rows_interact, verify
from raysearch.models.weight_layout import lay_out

#: PyTorch has no exception of its own for this on the CPU; its messages hold one of these.
_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_SHORTEST = 16  # the fewest tokens that are worth trying
#: What a pass through a layer costs beside its tokens, as tokens. On one core SmolLM2 takes as long for 32 to 64.
_PASS_TOKENS_ON_CPU = 64
#: A GPU waits some 0.3 ms for a layer's kernels to be launched. A token takes its matrix products, in FLOP/s, and some
#: 150 bytes of memory for each element of its state, at 2.5 TB/s: as measured on an H100, 0.86 us in a layer of an 8B.
_PASS_S_ON_GPU, _FLOPS_OF_GPU, _ELEMENT_S_ON_GPU = 3e-4, 7e14, 150 / 2.5e12

T = TypeVar("T")


class Replica:
    """A resident model, with the calibrations that its units are on.

    Args:
        stack: The model's layers; checked against the model's own forward before anything is evaluated. On the CPU the
            weights of a small model are copied into a faster layout.
        calibrations: Those that it has from the start; others are put into `calibrations` when they are needed.
        threads: CPU threads of torch, fixed because kernels may add in another order with another count.
        load_tokenizer: Loads the model's tokenizer; called when first needed.
    """

    def __init__(
        self,
        stack: LayerStack,
        calibrations: Iterable[Calibration] = (),
        threads: int = 1,
        load_tokenizer: Callable[[], Any] = lambda: None,
    ) -> None:
        torch.set_num_threads(threads)
        reuse_freed_memory()
        if not stack.compiled:
            lay_out(stack.model)
        verify(stack)
        self.stack = stack
        self.calibrations = {calibration.fingerprint: calibration for calibration in calibrations}
        self._at_once: dict[str, int] = {}  # samples, by calibration, where memory did not hold a shard
        self.texts_at_once: int | None = None  # that jobs write, where memory did not hold more
        self._load_tokenizer = load_tokenizer
        self._packing: dict[str, bool] = {}  # whether choices share their prompt, by calibration
        self._interacting: dict[str, bool] = {}  # whether a row's loss depends on those beside it, by calibration

    @functools.cached_property
    def tokenizer(self) -> Any:
        """The model's tokenizer, loaded on first use."""
        return self._load_tokenizer()

    def evaluate(self, unit: Unit) -> UnitResult:
        """Walk the prefix plan of a unit's masks over its shard, or measure its statistic there.

        If memory does not hold that, half as many samples go through the model at once, and half as many again; the
        number is remembered. The last bits of a loss may differ then, as they do on another kind of device. The unit's
        calibration must be in `calibrations`.

        Raises:
            UserError: Not even one sample fits.
        """
        calibration = self.calibrations[unit.calibration]
        with self.stack.compiling():
            return in_memory(lambda: self._evaluate(unit, calibration), lambda: self._halve(unit, calibration))

    def _evaluate(self, unit: Unit, calibration: Calibration) -> UnitResult:
        """Evaluate with as many samples at once as memory has held so far."""
        started = time.perf_counter()
        at_once = self._at_once.get(calibration.fingerprint)
        objective, packed = calibration.objective, None
        self.stack.by_length = self._rows_interact(calibration)
        if isinstance(unit, MaskUnit) and isinstance(objective, StateObjective) and objective.form is Form.CHOICES:
            packed = not self.stack.by_length and self._packs(calibration)
        batches: Sequence[Batch] = unit.batches(calibration)
        together = bool(packed) and self._on_gpu
        if not isinstance(objective, ModelObjective) and not together:
            batches = [part for batch in batches for part in cut_by_length(batch, bool(packed), self._pass_tokens)]
        batches = [part for batch in batches for part in batch.at_most(at_once)]
        values: dict[Subject, npt.NDArray[np.float64]]
        texts: dict[Subject, list[ScoredText]] = {}
        if isinstance(unit, StatisticUnit):
            values = {unit.statistic: measure(unit.statistic, self.stack, batches, objective)}
            layers, heads = unit.statistic.passes * self.stack.n_layers, int(unit.statistic.needs_gradients)
            tokens = layers * sum(each.input_ids.size for each in batches)
        elif isinstance(objective, StateObjective):
            inputs = [pack(batch, together) if packed else batch.inputs for batch in batches]
            plan = plan_of(objective, unit.masks, self.stack.n_layers)
            walked = [self._walk(plan, set(unit.masks), *part, objective) for part in zip(batches, inputs, strict=True)]
            losses = torch.stack([torch.cat([part[mask] for part in walked]) for mask in walked[0]])
            values = dict(zip(walked[0], losses.cpu().numpy(), strict=True))
            layers, heads = plan.layer_forwards, objective.heads * len(unit.masks)
            tokens = layers * sum(each.n_tokens for each in inputs)
        else:
            assert isinstance(objective, ModelObjective), "an objective is of states, or of the model"
            runs = [self._run(unit, batch, objective) for batch in batches]
            values = {mask: np.concatenate([run[mask].losses.numpy() for run in runs]) for mask in unit.masks}
            texts = {mask: [text for run in runs for text in run[mask].texts] for mask in unit.masks}
            texts = {mask: of_mask for mask, of_mask in texts.items() if of_mask}
            tokens = sum(of.n_tokens * (self.stack.n_layers - len(mask)) for run in runs for mask, of in run.items())
            layers, heads = passes(objective, unit.masks, self.stack.n_layers)
        return UnitResult(values, layers, heads, tokens, packed, time.perf_counter() - started, at_once, texts)

    def _halve(self, unit: Unit, calibration: Calibration) -> None:
        """Remember that half as many samples of a calibration may fit."""
        batches = unit.batches(calibration)
        most = max(batch.n_samples for batch in batches)
        before = min(most, self._at_once.get(calibration.fingerprint, most))
        if before > 1:
            self._at_once[calibration.fingerprint] = before // 2
            return
        longest = max(batch.input_ids.shape[1] for batch in batches)
        fits = self._fitting(unit, calibration, longest)
        remedy = f"{fits} tokens fit, so use data.seq_len={fits}" if fits else "use a smaller data.seq_len"
        raise UserError(
            f"a single sample of {longest} tokens is more than {_describe(self.stack.model.device)} holds beside the "
            f"model; {remedy}, or model.dtype=bfloat16, or more memory a replica (cluster.gpus_per_replica=…)"
        )

    def _fitting(self, unit: Unit, calibration: Calibration, too_long: int) -> int | None:
        """Return a length in tokens at which a sample of text fits, by halving; None if that cannot be tried."""
        (first, *_) = unit.batches(calibration)
        if not isinstance(unit, MaskUnit) or first.choices is not None or first.answers is not None:
            return None
        longest = int(first.lengths.argmax())
        length = too_long // 2
        while length >= _SHORTEST:
            shorter = replace(calibration, shards=(first.samples(longest, longest + 1).beginnings(length),))
            try:
                self._evaluate(replace(unit, shard=0), shorter)
                return length
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
            release()
            length //= 2
        return None

    @torch.no_grad()  # not inference mode: what a model caches in a walk must serve a gradient too
    def _walk(
        self, plan: PrefixPlan, wanted: Container[Mask], batch: Batch, inputs: Inputs, objective: StateObjective
    ) -> dict[Mask, Tensor]:
        """Return the wanted masks' losses, which wait on the device; the plan may score the dense model beside them."""
        captured = self.stack.capture(inputs)
        hidden, held = captured.embedded, list[Tensor]()
        dense: Tensor | None = None
        losses: dict[Mask, Tensor] = {}
        for step in plan.steps:
            match step.op:
                case Op.RUN:
                    hidden = self.stack.run_layer(step.index, hidden, captured)
                case Op.HOLD:
                    held.append(hidden.clone())  # a layer may write into its input
                case Op.RESTORE:
                    hidden = held.pop()
                case Op.SCORE:
                    mask = plan.masks[step.index]
                    states = predicting(hidden, inputs).to(self.stack.last_device)
                    if objective.compares and mask == Mask():  # the first to be scored
                        dense = states
                    if mask in wanted:
                        losses[mask] = _by_sample(objective, objective.losses(states, batch, self.stack, dense), batch)
        return losses

    @torch.no_grad()
    def _run(self, unit: MaskUnit, batch: Batch, objective: ModelObjective) -> dict[Mask, ModelLosses]:
        found = {}
        for mask in unit.masks:
            with self.stack.bypassed(mask) as model:
                found[mask] = objective.model_losses(model, self.tokenizer, batch)
                _by_sample(objective, found[mask].losses, batch)
        return found

    @functools.cached_property
    def _pass_tokens(self) -> int:
        """How many tokens take as long as a pass through a layer costs beside its tokens."""
        if not self._on_gpu:
            return _PASS_TOKENS_ON_CPU
        weights = sum(each.numel() for each in self.stack.layers[0].parameters())
        state = (weights / 12) ** 0.5  # elements of a token's state, in a Transformer layer
        return int(_PASS_S_ON_GPU / (2 * weights / _FLOPS_OF_GPU + state * _ELEMENT_S_ON_GPU))

    @property
    def _on_gpu(self) -> bool:
        return self.stack.last_device.type != "cpu"

    def _rows_interact(self, calibration: Calibration) -> bool:
        """Whether rows of different lengths must not share a batch: tried on the longest row beside two shorter ones.

        The shortest row is on the other side of a length that changes what the model computes, if any row is. The
        longest of the others has the most tokens beyond that length.
        """
        name = calibration.fingerprint
        if name not in self._interacting:
            # Prompts run in the model's own generation, which is compared with each row by itself.
            shards = () if isinstance(calibration.objective, ModelObjective) else calibration.shards
            by_length: dict[int, npt.NDArray[np.int64]] = {}
            for shard in shards:
                for row, length in zip(shard.input_ids, shard.lengths.tolist(), strict=True):
                    by_length.setdefault(length, row[:length])
            lengths = sorted(by_length)
            rows = [by_length[length] for length in sorted({*lengths[:1], *lengths[-2:]})]
            try:
                self._interacting[name] = len(rows) > 1 and rows_interact(self.stack, rows)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                self._interacting[name] = True  # so each row is right in any case
        return self._interacting[name]

    def _packs(self, calibration: Calibration) -> bool:
        """Whether choices may share their prompt: tried on the items with the longest row, and the longest packed."""
        name = calibration.fingerprint
        if name not in self._packing:
            items = [shard.samples(item, item + 1) for shard in calibration.shards for item in range(shard.n_samples)]
            packed = np.concatenate([packed_lengths(shard) for shard in calibration.shards])
            longest_row = max(items, key=lambda item: item.input_ids.shape[1])
            largest = {id(one): one for one in (longest_row, items[packed.argmax()])}  # often the same
            self._packing[name] = all(packs(self.stack, one) for one in largest.values())
        return self._packing[name]


def _by_sample(objective: Objective, losses: Tensor, batch: Batch) -> Tensor:
    """Return the losses that an objective found; refuse what would stand in the ledger as something else."""
    given: Any = losses
    is_tensor = isinstance(given, Tensor)
    if not is_tensor or given.dtype != torch.float64 or given.shape != (batch.n_samples,):
        said = f"{given.dtype} of shape {list(given.shape)}" if is_tensor else repr(given)
        raise UserError(
            f"{type(objective).__name__} returned {said} for {batch.n_samples} samples; return a float64 tensor of one "
            "loss a sample"
        )
    return losses


def make_replica(
    model: LocatedModel, threads: int, tokenizer: Any = None, over_gpus: bool = False, detached: Detached | None = None
) -> Replica:
    """Make a replica in this process.

    Args:
        model: What to load, and onto which device.
        threads: CPU threads.
        tokenizer: The model's; None to read it on first use.
        over_gpus: Whether the layers are spread over all GPUs there are.
        detached: The model; None to read them from disk.

    Raises:
        UserError: The device does not hold the model.
    """
    device = "cpu" if over_gpus else model.device
    load = functools.partial(load_tokenizer, model) if tokenizer is None else lambda: tokenizer
    try:
        module = load_model(model, device) if detached is None else torch.nn.Module.to(attach(*detached), device)
        module = spread(module, model.name) if over_gpus else module
        return Replica(LayerStack(module, model.compile, model.fused_head), (), threads, load)
    except Exception as error:
        if not is_out_of_memory(error.__cause__ or error):  # the stack's check may have put it in other words
            raise
        raise UserError(
            f"{_describe(torch.device('cuda' if over_gpus else device))} does not hold model={model.name}; use "
            "model.dtype=bfloat16, or more memory a replica (cluster.gpus_per_replica=…)"
        ) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that an accelerator or the machine has run out of memory."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _OUT_OF_MEMORY)


def in_memory(attempt: Callable[[], T], use_less: Callable[[], object]) -> T:
    """Return what an attempt returns; where memory is short, call `use_less`, which may raise, and try again."""
    while True:
        try:
            return attempt()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        release()  # here, where nothing holds on to the error's frames and their tensors
        use_less()


def reuse_freed_memory() -> None:
    """Have glibc keep the memory of freed tensors for the next ones.

    It gives large blocks back to the system at once, which then clears every page of the next block anew: up to half of
    a replica's time where several share a machine, and a fifth of a training's.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        # Before glibc 2.35 the first takes 2**25 at most; without it the second would fix it at 128 KiB.
        if libc.mallopt(_M_MMAP_THRESHOLD, 2**30) or libc.mallopt(_M_MMAP_THRESHOLD, 2**25):
            libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def release() -> None:
    """Free what PyTorch and Python keep without using it."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _describe(device: torch.device) -> str:
    """Return a device with its memory: ``cuda:0 (NVIDIA H100 80GB HBM3, 79.2 GiB)``."""
    if device.type != "cuda":
        return str(device)
    properties = torch.cuda.get_device_properties(device)
    return f"{device} ({properties.name}, {properties.total_memory / 2**30:.1f} GiB)"
