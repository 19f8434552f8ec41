"""Hidden-state distillation: the layer before each cut learns what it and the removed layers did in the dense model.

A step runs the layers up to the cut without gradients, and the backward pass goes through one layer. The states of a
step's rows are computed again each time, so memory holds a few rows at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import AdamW
from transformers import get_scheduler

from raysearch.calibration.batch import Batch
from raysearch.core.site import Run
from raysearch.errors import UnsupportedModelError
from raysearch.evaluation.memory import reuse_freed_memory
from raysearch.models.layers import State
from raysearch.models.loading import load_model
from raysearch.models.stack import LayerStack, predicting
from raysearch.recovery.checkpoint import set_parameters
from raysearch.recovery.layer_cuts import LayerCut
from raysearch.recovery.trainer import TrainingRows, TrainingSetup, computes_in_bfloat16, load_pruned
from raysearch.searching.events import LossPoint

_LEAST_CHANGE = 1e-3  # that removed layers make of a token's state, as a share of the state


class Step(NamedTuple):
    """The result of a step: its loss, the norm of its gradient, and the tokens of its rows."""

    loss: float
    gradient_norm: float
    n_tokens: int


@dataclass(frozen=True)
class TrainedCut:
    """The training of one cut.

    Args:
        points: Its losses. Steps and tokens count from its beginning; the first point is before the first step.
        best_step: The step with the lowest loss on held-out rows, whose weights are kept; 0 if none was better than the
            weights before.
        parameters: The number of trained parameters.
    """

    points: tuple[LossPoint, ...]
    best_step: int
    parameters: int

    @property
    def steps(self) -> int:
        """The number of its steps."""
        return self.points[-1].step

    @property
    def tokens(self) -> int:
        """The number of tokens that it was trained on."""
        return self.points[-1].tokens

    @property
    def held_out(self) -> list[float]:
        """Its losses on held-out rows, in order."""
        return [point.held_out for point in self.points if point.held_out is not None]


class CutTrainer:
    """Trains the layers before the cuts of a pruned model.

    Args:
        setup: The pruned checkpoint, the dense model, the cuts, the rows and the options.
        micro_batch_size: The number of rows at once.

    Raises:
        UnsupportedModelError: Layers share weights.
    """

    def __init__(self, setup: TrainingSetup, micro_batch_size: int) -> None:
        options = setup.options
        assert setup.dense is not None, "needed by recovery.loss=hidden"
        reuse_freed_memory()
        self.options = options
        self.micro_batch_size = micro_batch_size
        n_held_out = options.n_held_out(len(setup.data.rows))
        self.held_out_rows = setup.data.part(0, n_held_out)
        self.training_rows = setup.data.part(n_held_out, len(setup.data.rows))
        self.cuts = setup.cuts
        self._device = "cuda" if setup.on_gpu else "cpu"
        self._bf16 = computes_in_bfloat16(options, on_gpu=setup.on_gpu)
        pruned = load_pruned(setup.model, options, on_gpu=setup.on_gpu, bf16=self._bf16)
        torch.nn.Module.to(pruned, self._device)
        self._pruned = LayerStack(pruned.eval().requires_grad_(False))
        self._dense = LayerStack(load_model(setup.dense, self._device))
        # Padding takes time, and some models compute other states for a row next to a longer one.
        self._dense.by_length = self._pruned.by_length = True

    @property
    def device(self) -> torch.device:
        """The device of both models."""
        return torch.device(self._device)

    def errors(self, rows: TrainingRows, cut: LayerCut) -> Tensor:
        """Return the error of the hidden state behind a cut at each position that predicts a scored token.

        It is |p - d|² / |d - b|²: p is the state that leaves the layer before the cut in the pruned model, d the state
        that leaves the last removed layer in the dense model, and b the state that leaves the layer before the cut
        there. So it is about 1 for a layer that was not trained, and 0 if nothing is lost. A change |d - b| of less
        than a thousandth of |d|, which bfloat16 may round to 0, counts as a thousandth.

        Args:
            rows: The rows.
            cut: The cut.

        Returns:
            The errors, float32, [n], with gradients if they are enabled.
        """
        ids = [row.ids for row in rows.rows]
        scored = [
            [index >= start for index in range(len(row.ids))] for row, start in zip(rows.rows, rows.starts, strict=True)
        ]
        inputs = Batch.of(ids, scored).inputs
        with torch.autocast(self._device, torch.bfloat16, enabled=self._bf16):
            with torch.no_grad():
                captured_dense = self._dense.capture(inputs)
                captured = self._pruned.capture(inputs)
                state = captured_dense.embedded
                entering = captured.embedded
                first = self.cuts[0]
                for layer in range(cut.last + 1):
                    if layer == first.before == first.block:  # up to here both models are the same
                        dtype = entering.hidden.dtype
                        entering = State(state.hidden.to(dtype, copy=True), state.clone().extras)
                    state = self._dense.run(Run(layer), state, captured_dense)
                    if layer == cut.before:
                        before = state.hidden.clone()
                n_shared = first.block if first.before == first.block else 0
                for block in range(n_shared, cut.block):
                    entering = self._pruned.run(Run(block), entering, captured)
            leaving = self._pruned.run(Run(cut.block), entering, captured)
        states = (leaving.hidden, state.hidden, before)
        pruned, dense, unchanged = (predicting(hidden, inputs).flatten(1).float() for hidden in states)
        change = (dense - unchanged).square().sum(1)
        return (pruned - dense).square().sum(1) / change.maximum(_LEAST_CHANGE**2 * dense.square().sum(1))

    def parameters(self, cut: LayerCut) -> dict[str, Parameter]:
        """Return the parameters of the layer before a cut, by their names in the pruned model.

        Raises:
            UnsupportedModelError: Another layer shares some of them.
        """
        by_layer = [{id(parameter) for parameter in layer.parameters()} for layer in self._pruned.layers]
        trained = by_layer.pop(cut.block)
        if any(trained & ids for ids in by_layer):
            raise UnsupportedModelError(
                f"{self._pruned.kind} has layers that share weights, so none of them can be trained alone; use "
                "recovery.loss=distill"
            )
        named = self._pruned.model.named_parameters()
        return {name: value for name, value in named if id(value) in trained and value.is_floating_point()}

    def optimizer(self, cut: LayerCut, rate: float) -> AdamW:
        """Return an optimizer of the layer before a cut, whose parameters then have gradients.

        Args:
            cut: The cut.
            rate: The learning rate.

        Returns:
            The optimizer.
        """
        parameters = [parameter.requires_grad_() for parameter in self.parameters(cut).values()]
        options = self.options
        return AdamW(parameters, rate, (options.beta1, options.beta2), weight_decay=options.weight_decay)

    def step(self, cut: LayerCut, indices: Sequence[int], optimizer: AdamW) -> Step:
        """Train the layer before a cut on some of the training rows.

        Args:
            cut: The cut.
            indices: The indices of the rows.
            optimizer: The optimizer of that layer.

        Returns:
            The loss before the step, and its cost.
        """
        n_scored = sum(len(self.training_rows.rows[i].ids) - self.training_rows.starts[i] for i in indices)
        total = 0.0
        for rows in _parts(self.training_rows, indices, self.micro_batch_size):
            loss = self.errors(rows, cut).sum() / max(1, n_scored)
            loss.backward()
            total += loss.item()
        (group,) = optimizer.param_groups
        norm = torch.nn.utils.clip_grad_norm_(group["params"], self.options.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        return Step(total, norm.item(), sum(len(self.training_rows.rows[i].ids) for i in indices))

    @torch.no_grad()
    def held_out_loss(self, cut: LayerCut) -> float:
        """Return the mean error of a cut on the held-out rows."""
        errors = [
            self.errors(rows, cut).double().cpu()
            for rows in _parts(self.held_out_rows, range(len(self.held_out_rows.rows)), self.micro_batch_size)
        ]
        return float(torch.cat(errors).mean())

    def n_steps(self) -> int:
        """Return the number of steps of each cut, if its loss does not end it earlier."""
        return self.options.n_steps(len(self.training_rows.rows))

    def batches(self) -> Iterator[list[int]]:
        """Yield the indices of the rows of each step, without an end. Each epoch has another order."""
        n_rows = len(self.training_rows.rows)
        for epoch in itertools.count():
            order = np.random.default_rng([self.options.seed, epoch]).permutation(n_rows).tolist()
            yield from (
                order[start : start + self.options.batch_size] for start in range(0, n_rows, self.options.batch_size)
            )

    def set_values(self, values: Mapping[str, Tensor]) -> None:
        """Give parameters of the pruned model the values of these names."""
        set_parameters(self._pruned.model, values)

    def train(self, cut: LayerCut, rate: float, on_step: Callable[[list[LossPoint], float], None]) -> TrainedCut:
        """Train the layer before a cut, and leave it with its best weights.

        Args:
            cut: The cut.
            rate: The learning rate after the warm-up.
            on_step: Receives the losses so far after each step, and the norm of its gradient.

        Returns:
            The losses and the cost.
        """
        options = self.options
        optimizer = self.optimizer(cut, rate)
        n_steps = self.n_steps()
        kind = "constant_with_warmup" if options.schedule == "constant" else options.schedule
        scheduler = get_scheduler(kind, optimizer, options.warmup_steps if n_steps > 1 else 0, n_steps)
        measured_steps = options.measured_steps(n_steps)
        best = _Best(0, self.held_out_loss(cut), self.values(cut))
        points = [LossPoint(0, 0, None, best.loss)]
        n_worse = 0
        for number, indices in zip(range(1, n_steps + 1), self.batches(), strict=False):
            step = self.step(cut, indices, optimizer)
            scheduler.step()
            held_out = self.held_out_loss(cut) if number % measured_steps == 0 or number == n_steps else None
            points.append(LossPoint(number, points[-1].tokens + step.n_tokens, step.loss, held_out))
            on_step(points, step.gradient_norm)
            if held_out is None:
                continue
            if held_out < best.loss:
                best = _Best(number, held_out, self.values(cut))
                n_worse = 0
            elif (n_worse := n_worse + 1) == options.patience:
                break
        self.set_values(best.values)
        parameters = self.parameters(cut).values()
        for parameter in parameters:
            parameter.requires_grad_(False)
        return TrainedCut(tuple(points), best.step, sum(parameter.numel() for parameter in parameters))

    def values(self, cut: LayerCut) -> dict[str, Tensor]:
        """Return a copy of the parameters of the layer before a cut, on the CPU."""
        return {name: value.detach().cpu().clone() for name, value in self.parameters(cut).items()}


class _Best(NamedTuple):
    """The weights with the lowest loss on held-out rows so far."""

    step: int
    loss: float
    values: Mapping[str, Tensor]


def _parts(rows: TrainingRows, indices: Sequence[int], n: int) -> Iterator[TrainingRows]:
    """Yield rows of some indices, at most `n` at once."""
    for start in range(0, len(indices), n):
        part = indices[start : start + n]
        yield TrainingRows([rows.rows[index] for index in part], [rows.starts[index] for index in part])
