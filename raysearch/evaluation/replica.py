"""A resident model that answers "what do these masks lose on this shard?", and what its layers look like there.

A plain class: torch only, no Ray. Ray actors, the inline pool, tests and benchmarks all use this one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from raysearch.calibration.calibration import Calibration
from raysearch.calibration.objectives.base import Objective
from raysearch.evaluation.unit import Subject, Task, Unit, UnitResult
from raysearch.mask import Mask
from raysearch.models.stack import LayerStack
from raysearch.models.statistics import measure
from raysearch.prefix import Op, Step, plan_prefixes


class Replica:
    """A model, resident, with the calibration it is asked about.

    Args:
        stack: The model's layers; checked against the model's own forward before the first answer.
        calibration: The shards.
        objective: What is computed from the final hidden states.
        threads: CPU threads of torch, fixed because kernels may add in another order with another count.
    """

    def __init__(self, stack: LayerStack, calibration: Calibration, objective: Objective, threads: int = 1) -> None:
        torch.set_num_threads(threads)
        stack.verify()
        self.stack = stack
        self.calibration = calibration
        self.objective = objective

    def evaluate(self, task: Task) -> UnitResult:
        """Answers a unit by walking the prefix plan of its masks over its shard, and a survey by measuring.

        Args:
            task: The masks, or the statistic, and the shard.

        Returns:
            The summed loss of every sample for every mask, or the statistic's rows, and what it cost.
        """
        started = time.perf_counter()
        if isinstance(task, Unit):
            plan = plan_prefixes(task.masks, self.stack.n_layers)
            losses = self._walk(plan.steps, plan.masks, task.shard)
            return UnitResult(losses, plan.layer_forwards, plan.head_forwards, time.perf_counter() - started)
        shards = self.calibration.shards
        batches = [shards[task.shard]] if task.statistic.by_sample else shards
        rows = measure(task.statistic, self.stack, batches, self.objective)
        layers, heads = task.statistic.passes * self.stack.n_layers, int(task.statistic.needs_gradients)
        return UnitResult({task.statistic: rows}, layers, heads, time.perf_counter() - started)

    @torch.no_grad()  # not inference mode: what a model caches in a walk must serve a gradient too
    def _walk(self, steps: Sequence[Step], masks: Sequence[Mask], shard: int) -> dict[Subject, npt.NDArray[np.float64]]:
        batch = self.calibration.shards[shard]
        captured = self.stack.capture(batch)
        hidden, held = captured.embedded, list[torch.Tensor]()
        losses: dict[Subject, npt.NDArray[np.float64]] = {}
        for step in steps:
            match step.op:
                case Op.RUN:
                    hidden = self.stack.run_layer(step.index, hidden, captured)
                case Op.HOLD:
                    held.append(hidden.clone())  # a layer may write into its input
                case Op.RESTORE:
                    hidden = held.pop()
                case Op.SCORE:
                    losses[masks[step.index]] = self.objective.losses(hidden, batch, self.stack).numpy()
        return losses
