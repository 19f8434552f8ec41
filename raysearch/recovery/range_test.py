"""Chooses a learning rate by a range test: the rate grows from step to step, until the loss does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from transformers import TrainerCallback
from typing_extensions import override

from raysearch.errors import UserError
from raysearch.models.loading import quiet
from raysearch.recovery.hidden import CutTrainer
from raysearch.recovery.trainer import TrainingSetup, all_threads, make_trainer, naming_bitsandbytes

#: The rates of the test.
RATES = tuple(float(rate) for rate in np.geomspace(1e-5, 1e-1, 16))
_SMOOTHING = 0.5  # the weight of the earlier losses
_DIVERGED = 2.0  # the test ends when the smoothed loss is this many times the lowest
_BELOW = 4.0  # the chosen rate is the one with the lowest smoothed loss, divided by this


@dataclass(frozen=True)
class RangeTest:
    """The result of a range test.

    Args:
        rates: The learning rates of the steps.
        losses: The loss after each of these steps, on the same rows; fewer than rates if the loss has diverged.
        rate: The chosen learning rate.
    """

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    rate: float


def range_test(setup: TrainingSetup, micro_batch_size: int) -> RangeTest:
    """Train the pruned model for some steps with growing learning rates, and choose one; the weights are not kept.

    All steps have the same rows, the first of an epoch, so that their losses differ only by the weights.

    Args:
        setup: The pruned checkpoint, the rows and the options.
        micro_batch_size: The number of rows at once.

    Returns:
        The losses and the chosen rate.

    Raises:
        UserError: The loss is not finite with the lowest rate.

    Source: Smith 2017, Cyclical Learning Rates for Training Neural Networks (arXiv 1506.01186), section 3.3.
    """
    if setup.options.loss == "hidden":
        losses = _losses_at_cut(setup, micro_batch_size)
    else:
        losses = _losses_of_trainer(setup, micro_batch_size)
    if not losses:
        raise UserError(
            f"recovery.learning_rate=auto: the loss is not finite after a step with the rate {RATES[0]:g}; use "
            "recovery.dtype=float32, or other data"
        )
    return RangeTest(RATES, tuple(losses), chosen_rate(RATES, losses))


def chosen_rate(rates: Sequence[float], losses: Sequence[float]) -> float:
    """Return the rate with the lowest smoothed loss, divided by 4, to two digits.

    The smoothed loss after step k is s_k / (1 - b^k) with s_k = b s_(k-1) + (1 - b) loss_k and b = 0.5.

    Args:
        rates: The learning rates of the steps, ascending.
        losses: The loss after each of these steps; there may be fewer.

    Returns:
        The rate.

    Source: Smith 2017 (arXiv 1506.01186), section 3.3, for the test; the distance from the lowest loss is measured in
    experiments/healing.
    """
    smoothed = smooth(losses)
    return float(f"{rates[smoothed.index(min(smoothed))] / _BELOW:.1e}")


def smooth(losses: Sequence[float]) -> list[float]:
    """Return the exponential moving average of losses, without a bias towards zero; see `chosen_rate`."""
    average = 0.0
    smoothed = []
    for step, loss in enumerate(losses, start=1):
        average = _SMOOTHING * average + (1 - _SMOOTHING) * loss
        smoothed.append(average / (1 - _SMOOTHING**step))
    return smoothed


def _has_diverged(losses: Sequence[float]) -> bool:
    """Return whether the last loss is not finite, or the smoothed loss is much higher than the lowest."""
    smoothed = smooth(losses)
    return not math.isfinite(losses[-1]) or smoothed[-1] > _DIVERGED * min(smoothed)


def _losses_at_cut(setup: TrainingSetup, micro_batch_size: int) -> list[float]:
    """Return the loss after each rate at the first cut; the other cuts are trained with the same rate."""
    with quiet(), all_threads():
        trainer = CutTrainer(setup, micro_batch_size)
        cut = trainer.cuts[0]
        optimizer = trainer.optimizer(cut, RATES[0])
        indices = next(trainer.batches())
        losses: list[float] = []
        trainer.step(cut, indices, optimizer)
        for rate in RATES[1:]:
            optimizer.param_groups[0]["lr"] = rate
            losses.append(trainer.step(cut, indices, optimizer).loss)
            if _has_diverged(losses):
                return [loss for loss in losses if math.isfinite(loss)]
        return [*losses, trainer.step(cut, indices, optimizer).loss]


class _GrowingRate(TrainerCallback):
    """Sets the learning rate of each step, and ends the training when the loss has diverged."""

    def __init__(self) -> None:
        self.losses: list[float] = []  # before each step

    @override
    def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        for group in more["optimizer"].param_groups:
            group["lr"] = RATES[min(state.global_step, len(RATES) - 1)]

    @override
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
        if "loss" in (logs or {}):
            self.losses.append(logs["loss"])
            control.should_training_stop = len(self.losses) > 1 and _has_diverged(self.losses[1:])


def _losses_of_trainer(setup: TrainingSetup, micro_batch_size: int) -> list[float]:
    """Return the loss after each rate in the trainer of trl."""
    options = setup.options
    n_held_out = options.n_held_out(len(setup.data.rows))
    data = setup.data.part(n_held_out - 1, n_held_out + options.batch_size)  # the trainer needs a held-out row
    n_rows = len(data.rows)
    options = replace(
        options,
        held_out=0.5 / n_rows,
        workers=1,
        learning_rate=RATES[0],
        schedule="constant",
        warmup_steps=0,
        epochs=float(len(RATES) + 1),
        max_steps=None,
        patience=None,
    )
    growing_rate = _GrowingRate()
    with quiet(), all_threads(), naming_bitsandbytes(options):
        trainer = make_trainer(replace(setup, data=data, options=options), micro_batch_size)
        trainer.args.eval_strategy = trainer.args.save_strategy = "no"
        trainer.args.load_best_model_at_end = False
        trainer.add_callback(growing_rate)
        trainer.train()
    return [loss for loss in growing_rate.losses[1:] if math.isfinite(loss)]
