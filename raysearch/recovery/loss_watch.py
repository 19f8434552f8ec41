"""Watches the losses of a training: a loss that is not finite ends it, and one that grows is reported once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from raysearch.errors import UserError

_DIVERGED = 1.5  # the loss has diverged if it is this many times the mean loss of the first steps
_N_FIRST_STEPS = 3


class LossWatch:
    """Checks each loss of a training.

    Args:
        rate: The learning rate, for messages.
        warn: Receives a sentence when the loss grows.
    """

    def __init__(self, rate: float, warn: Callable[[str], None]) -> None:
        self._rate = rate
        self._warn = warn
        self._warned = False

    def check(self, losses: Sequence[float], step: int, gradient_norm: float) -> None:
        """Check the loss of the last step.

        Args:
            losses: The losses of the steps so far.
            step: The number of the last step.
            gradient_norm: The norm of its gradient.

        Raises:
            UserError: The loss or the gradient is not finite.
        """
        if not math.isfinite(losses[-1]) or not math.isfinite(gradient_norm):
            raise UserError(
                f"the training has diverged at step {step}: its loss is not finite; use a lower "
                f"recovery.learning_rate than {self._rate:g}"
            )
        if not self._warned and _grows(losses, step):
            self._warned = True
            self._warn(
                f"the training's loss grows ({losses[-1]:.3f} at step {step}, from {losses[0]:.3f}); use a lower "
                f"recovery.learning_rate than {self._rate:g}"
            )


def _grows(losses: Sequence[float], step: int) -> bool:
    """Return whether each of the last losses is much larger than the mean of the first losses."""
    first_losses = losses[:_N_FIRST_STEPS]
    last_losses = losses[-_N_FIRST_STEPS:]
    if step <= _N_FIRST_STEPS or len(last_losses) < _N_FIRST_STEPS:
        return False
    return min(last_losses) > _DIVERGED * sum(first_losses) / len(first_losses)
