"""A resident model that answers "what do these masks lose on this shard?", and what its layers look like there.

A plain class: torch only, no Ray. Ray actors, the inline pool, tests and benchmarks all use this one.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Container, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from raysearch.calibration.batch import Batch, Inputs
from raysearch.calibration.calibration import Calibration
from raysearch.calibration.objectives.base import ModelObjective, StateObjective
from raysearch.calibration.packing import pack
from raysearch.evaluation.costs import passes, plan_of
from raysearch.evaluation.unit import Subject, Survey, Task, Unit, UnitResult
from raysearch.mask import Mask
from raysearch.models.stack import LayerStack, predicting
from raysearch.models.statistics import measure
from raysearch.prefix import Op, PrefixPlan

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
        self._load_tokenizer = load_tokenizer
        self._packs = functools.cache(self._packs_choices)

    @functools.cached_property
    def tokenizer(self) -> Any:
        """The model's."""
        return self._load_tokenizer()

    def evaluate(self, task: Task) -> UnitResult:
        """Answers a unit by walking the prefix plan of its masks over its shard, and a survey by measuring.

        Where the objective looks at the model at work, a unit's masks are run one by one instead.

        Args:
            task: The masks, or the statistic, and the shard.

        Returns:
            The summed loss of every sample for every mask, or the statistic's rows, and what it cost.
        """
        started = time.perf_counter()
        calibration = self.calibrations[task.calibration]
        (batch, *_) = batches = task.batches(calibration)
        objective = calibration.objective
        packed = None
        if isinstance(task, Survey):
            values: Values = {task.statistic: measure(task.statistic, self.stack, batches, objective)}
            layers, heads = task.statistic.passes * self.stack.n_layers, int(task.statistic.needs_gradients)
            tokens = layers * sum(each.input_ids.size for each in batches)
        elif isinstance(objective, StateObjective):
            packed = None if batch.choices is None else self._packs(task.calibration)
            inputs = pack(batch) if packed else batch.inputs
            plan = plan_of(objective, task.masks, self.stack.n_layers)
            values = self._walk(plan, set(task.masks), batch, inputs, objective)
            layers, heads = plan.layer_forwards, objective.heads * len(task.masks)
            tokens = layers * inputs.n_tokens
        else:
            assert isinstance(objective, ModelObjective), "an objective is of states, or of the model"
            values, tokens = self._run(task, batch, objective)
            layers, heads = passes(objective, task.masks, self.stack.n_layers)
        return UnitResult(values, layers, heads, tokens, packed, time.perf_counter() - started)

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

    def _packs_choices(self, calibration: str) -> bool:
        """Whether choices may share their prompt: proven on the items with the longest row, and the longest packed."""
        shards = self.calibrations[calibration].shards
        items = [shard.samples(item, item + 1) for shard in shards for item in range(shard.n_samples)]
        longest = max(items, key=lambda item: item.input_ids.shape[1]), max(items, key=lambda item: pack(item).n_tokens)
        return all(map(self.stack.packs, longest))
