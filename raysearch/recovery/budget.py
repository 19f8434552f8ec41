"""Chooses how many steps of a training fit into a number of minutes."""

from __future__ import annotations

import bisect
import math
import time
from dataclasses import dataclass, field, replace

from raysearch.errors import UserError
from raysearch.recovery.range_test import RATES
from raysearch.recovery.spec import RecoveryOptions
from raysearch.recovery.step_time import StepTime
from raysearch.text.numbers import count, duration

_RESERVE = 0.05  # the share of the time that is not planned
_LOADS = 3  # models that are loaded after the training: to write the checkpoint, and to compare it


@dataclass(frozen=True)
class TimeLimit:
    """The time that a recovery may take without its assessment.

    Args:
        minutes: The time.
        started: When it began, as `time.monotonic` shows it.

    Raises:
        UserError: The time is not positive.
    """

    minutes: float
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        if not 0 < self.minutes < math.inf:
            raise UserError(f"--minutes={self.minutes:g} is no time to train in; use more than 0")

    @property
    def spent_s(self) -> float:
        """The seconds since the beginning."""
        return time.monotonic() - self.started


@dataclass(frozen=True)
class StepCosts:
    """The costs of a recovery: those so far, and those of its parts.

    Args:
        spent_s: The seconds so far.
        step: The measured step of the training.
        logits_row_s: The seconds of the dense model's logits on one row; 0 if none are needed.
        write_s: The seconds of writing the pruned checkpoint.
    """

    spent_s: float
    step: StepTime
    logits_row_s: float
    write_s: float

    def seconds(self, options: RecoveryOptions, n_steps: int, n_rows: int) -> float:
        """Return the expected seconds until the recovered checkpoint is written.

        Args:
            options: The options of the training.
            n_steps: The steps of the training; with ``hidden``, of each cut.
            n_rows: The rows, including held-out rows.

        Returns:
            The seconds, from the beginning of the recovery.
        """
        n_measured = options.n_measured(n_steps)
        held_out_s = n_measured * options.n_held_out(n_rows) * self.step.held_out_row_s
        tested_steps = len(RATES) + 1 if options.learning_rate == "auto" else 0
        steps_s = n_steps * self.step.step_s + tested_steps * self.step.tested_step_s
        training_s = self.step.load_s + steps_s + held_out_s
        return self.spent_s + n_rows * self.logits_row_s + training_s + _LOADS * self.step.load_s + self.write_s


@dataclass(frozen=True)
class Budget:
    """The steps and rows that fit into a number of minutes.

    Args:
        minutes: The minutes.
        steps: The steps of the training; with ``hidden``, of each cut.
        of_steps: The steps without the limit.
        rows: The number of rows, including held-out rows.
        seconds: The expected seconds of the recovery, without the assessment.
    """

    minutes: float
    steps: int
    of_steps: int
    rows: int
    seconds: float

    def __str__(self) -> str:
        steps = count(self.of_steps, "step")
        share = f"all {steps}" if self.steps == self.of_steps else f"{self.steps} of {steps}"
        return (
            f"--minutes={self.minutes:g} fits {share}, on {count(self.rows, 'row')}: about {duration(self.seconds)}, "
            "without the assessment"
        )

    def left_out(self, n_rows: int) -> dict[str, int]:
        """Return the number of rows that the steps do not see, by the reason; empty if they see all `n_rows`."""
        return {"beyond --minutes": n_rows - self.rows} if self.rows < n_rows else {}

    def limited(self, options: RecoveryOptions) -> RecoveryOptions:
        """Return the options of a training with so many steps, of which at most a fifth are a warm-up."""
        return replace(options, max_steps=self.steps, warmup_steps=min(options.warmup_steps, self.steps // 5))


def fitting_steps(limit: TimeLimit, options: RecoveryOptions, n_rows: int, costs: StepCosts) -> Budget:
    """Return the largest number of steps that fits into the time, with only the rows that these steps see.

    Args:
        limit: The time.
        options: The options of the training.
        n_rows: The rows that there are, including held-out rows.
        costs: The measured costs.

    Returns:
        The steps and the rows.

    Raises:
        UserError: Not even one step fits.
    """
    most_steps = options.n_steps(n_rows - options.n_held_out(n_rows))
    available_s = limit.minutes * 60 * (1 - _RESERVE)
    for n_steps in range(most_steps, 0, -1):
        needed_rows = _needed_rows(options, n_steps, n_rows)
        seconds = costs.seconds(options, n_steps, needed_rows)
        if seconds <= available_s:
            return Budget(limit.minutes, n_steps, most_steps, needed_rows, seconds)
    least = math.ceil(seconds / 60 / (1 - _RESERVE) * 10) / 10
    raise UserError(
        f"--minutes={limit.minutes:g} is too short: the recovery needs about {duration(seconds)} with a single step of "
        f"training, without the assessment; use --minutes={least:g} or more"
    )


def _needed_rows(options: RecoveryOptions, n_steps: int, n_rows: int) -> int:
    """Return the number of first rows that a training of so many steps needs, including its held-out rows."""
    n_to_train = math.ceil(n_steps * options.batch_size / min(1.0, options.epochs))
    numbers = range(2, n_rows)
    index = bisect.bisect_left(numbers, n_to_train, key=lambda number: number - options.n_held_out(number))
    return numbers[index] if index < len(numbers) else n_rows
