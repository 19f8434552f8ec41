"""A resident model that answers "what do these masks lose on this shard?", and what its layers look like there.

A plain class: torch only, no Ray. Ray actors, the inline pool, tests and benchmarks all use this one.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from raysearch.calibration.batch import Batch, Inputs
from raysearch.calibration.calibration import Calibration
from raysearch.calibration.objectives.base import ModelObjective, StateObjective
from raysearch.calibration.packing import pack
from raysearch.core.mask import Mask
from raysearch.core.statistic import Subject
from raysearch.errors import UserError
from raysearch.evaluation.costs import passes, plan_of
from raysearch.evaluation.memory import describe, is_out_of_memory, release
from raysearch.evaluation.prefix import Op, PrefixPlan
from raysearch.evaluation.unit import Survey, Task, Unit, UnitResult
from raysearch.models.devices import resolve_device, spread
from raysearch.models.loading import load_model, load_tokenizer
from raysearch.models.shared_weights import Packed, unpack
from raysearch.models.spec import ModelSpec
from raysearch.models.stack import LayerStack, predicting
from raysearch.models.statistics import measure

_SHORTEST = 16  # the fewest tokens that are worth trying

Values = dict[Subject, npt.NDArray[np.float64]]


class Replica:
    """A model, resident, with the calibrations it is asked about.

    Args:
        stack: The model's layers; checked against the model's own forward before the first answer.
        calibrations: What it is asked about.
        threads: CPU threads of torch, fixed because kernels may add in another order with another count.
        load_tokenizer: Gives the model's tokenizer; called where what the model generates is read.
    """

    def __init__(
        self,
        stack: LayerStack,
        calibrations: Iterable[Calibration],
        threads: int = 1,
        load_tokenizer: Callable[[], Any] = lambda: None,
    ) -> None:
        torch.set_num_threads(threads)
        stack.verify()
        self.stack = stack
        self.calibrations = {calibration.fingerprint: calibration for calibration in calibrations}
        self._at_once: dict[str, int] = {}  # samples, by calibration, where memory did not hold a shard
        self._load_tokenizer = load_tokenizer
        self._packing: dict[str, bool] = {}  # whether choices share their prompt, by calibration

    @functools.cached_property
    def tokenizer(self) -> Any:
        """The model's."""
        return self._load_tokenizer()

    def evaluate(self, task: Task, calibration: Calibration | None = None) -> UnitResult:
        """Answers a unit by walking the prefix plan of its masks over its shard, and a survey by measuring.

        Where memory does not hold that, half as many samples go through the model at once, and half as many again; how
        many is remembered. The last bits of a loss may differ then, as they do on another kind of device.

        Args:
            task: The masks, or the statistic, and the shard.
            calibration: What the shard is of, where the replica was not made for it.

        Returns:
            The summed loss of every sample for every mask, or the statistic's rows, and what it cost.

        Raises:
            UserError: Not even one sample fits.
        """
        calibration = calibration or self.calibrations[task.calibration]
        while True:
            try:
                return self._evaluate(task, calibration)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
            release()  # here, where nothing holds on to the error's frames and their tensors
            self._halve(task, calibration)

    def _evaluate(self, task: Task, calibration: Calibration) -> UnitResult:
        """Answers with as many samples at once as memory has held so far."""
        started = time.perf_counter()
        at_once = self._at_once.get(calibration.fingerprint)
        batches = [part for batch in task.batches(calibration) for part in batch.at_most(at_once)]
        objective = calibration.objective
        packed = None
        if isinstance(task, Survey):
            values: Values = {task.statistic: measure(task.statistic, self.stack, batches, objective)}
            layers, heads = task.statistic.passes * self.stack.n_layers, int(task.statistic.needs_gradients)
            tokens = layers * sum(each.input_ids.size for each in batches)
        elif isinstance(objective, StateObjective):
            packed = None if batches[0].choices is None else self._packs(calibration)
            inputs = [pack(batch) if packed else batch.inputs for batch in batches]
            plan = plan_of(objective, task.masks, self.stack.n_layers)
            walked = [self._walk(plan, set(task.masks), *part, objective) for part in zip(batches, inputs, strict=True)]
            values = {mask: np.concatenate([part[mask] for part in walked]) for mask in walked[0]}
            layers, heads = plan.layer_forwards, objective.heads * len(task.masks)
            tokens = layers * sum(each.n_tokens for each in inputs)
        else:
            assert isinstance(objective, ModelObjective), "an objective is of states, or of the model"
            runs = [self._run(task, batch, objective) for batch in batches]
            values = {mask: np.concatenate([part[mask] for part, _ in runs]) for mask in task.masks}
            tokens = sum(run for _, run in runs)
            layers, heads = passes(objective, task.masks, self.stack.n_layers)
        return UnitResult(values, layers, heads, tokens, packed, time.perf_counter() - started, at_once)

    def _halve(self, task: Task, calibration: Calibration) -> None:
        """Remembers that half as many samples of a calibration may fit."""
        most = max(batch.n_samples for batch in task.batches(calibration))
        before = min(most, self._at_once.get(calibration.fingerprint, most))
        if before > 1:
            self._at_once[calibration.fingerprint] = before // 2
            return
        longest = max(batch.input_ids.shape[1] for batch in task.batches(calibration))
        fits = self._fitting(task, calibration, longest)
        remedy = f"{fits} tokens fit, so use data.seq_len={fits}" if fits else "use a smaller data.seq_len"
        raise UserError(
            f"a single sample of {longest} tokens is more than {describe(self.stack.model.device)} holds beside the "
            f"model; {remedy}, or model.dtype=bfloat16, or more memory a replica (cluster.gpus_per_replica=…)"
        )

    def _fitting(self, task: Task, calibration: Calibration, too_long: int) -> int | None:
        """A length in tokens at which a sample of text fits, halving; None where that cannot be tried."""
        (first, *_) = task.batches(calibration)
        if not isinstance(task, Unit) or first.choices is not None or first.answers is not None:
            return None
        length = too_long // 2
        while length >= _SHORTEST:
            shorter = replace(calibration, shards=(first.samples(0, 1).beginnings(length),))
            try:
                self._evaluate(replace(task, shard=0), shorter)
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
    ) -> Values:
        """The losses of the masks that are wanted; the plan may hold the dense model beside them."""
        captured = self.stack.capture(inputs)
        hidden, held = captured.embedded, list[Tensor]()
        dense: Tensor | None = None
        values: Values = {}
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
                    states = predicting(hidden, inputs)
                    if objective.compares and mask == Mask():  # the first to be scored
                        dense = states
                    if mask in wanted:
                        values[mask] = objective.losses(states, batch, self.stack, dense).numpy()
        return values

    @torch.no_grad()
    def _run(self, unit: Unit, batch: Batch, objective: ModelObjective) -> tuple[Values, int]:
        """The losses, and the tokens that went through layers."""
        values: Values = {}
        layer_tokens = 0
        for mask in unit.masks:
            with self.stack.bypassed(mask) as model:
                losses, tokens = objective.model_losses(model, self.tokenizer, batch)
            values[mask] = losses.numpy()
            layer_tokens += tokens * (self.stack.n_layers - len(mask))
        return values, layer_tokens

    def _packs(self, calibration: Calibration) -> bool:
        """Whether choices may share their prompt: proven on the items with the longest row, and the longest packed."""
        name = calibration.fingerprint
        if name not in self._packing:
            items = [shard.samples(item, item + 1) for shard in calibration.shards for item in range(shard.n_samples)]
            widest, longest = (lambda item: item.input_ids.shape[1]), (lambda item: pack(item).n_tokens)
            self._packing[name] = all(self.stack.packs(max(items, key=size)) for size in (widest, longest))
        return self._packing[name]


def make_replica(
    model: ModelSpec,
    calibrations: Sequence[Calibration],
    threads: int,
    tokenizer: Any = None,
    over_gpus: bool = False,
    packed: Packed | None = None,
) -> Replica:
    """Makes a replica in this process.

    Args:
        model: What to load, and onto which device.
        calibrations: What it is asked about.
        threads: CPU threads.
        tokenizer: The model's, where its files are not at hand; None to read them when it is needed.
        over_gpus: Whether its layers are spread over all GPUs that it has.
        packed: The weights; None to read them from disk.

    Raises:
        UserError: The device does not hold the model.
    """
    device = "cpu" if over_gpus else resolve_device(model)
    load = functools.partial(load_tokenizer, model) if tokenizer is None else lambda: tokenizer
    try:
        module = load_model(model, device) if packed is None else torch.nn.Module.to(unpack(*packed), device)
        module = spread(module, model.name) if over_gpus else module
        return Replica(LayerStack(module), calibrations, threads, load)
    except Exception as error:
        if not is_out_of_memory(error.__cause__ or error):  # the stack's check may have put it in other words
            raise
        raise UserError(
            f"{describe(torch.device('cuda' if over_gpus else device))} does not hold model={model.name}; use "
            "model.dtype=bfloat16, or more memory a replica (cluster.gpus_per_replica=…)"
        ) from error
