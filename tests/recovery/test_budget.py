"""A budget of minutes: the largest number of steps whose foreseen costs fit."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from raysearch.errors import UserError
from raysearch.recovery.budget import StepCosts, TimeLimit, fitting_steps
from raysearch.recovery.spec import RecoveryOptions
from raysearch.recovery.step_time import StepTime
from tests.sentences import Sentences

OPTIONS = RecoveryOptions(batch_size=8)
COSTS = StepCosts(spent_s=20.0, step=StepTime(10.0, 4.0, 0.5, 2.0, 1), logits_row_s=0.25, write_s=5.0)
N_ROWS = 254


def test_the_steps_that_fit_are_the_most_whose_costs_fit() -> None:
    for minutes in (2.0, 4.0, 7.0):
        budget = fitting_steps(TimeLimit(minutes), OPTIONS, N_ROWS, COSTS)
        options = budget.limited(OPTIONS)
        n_held_out = options.n_held_out(budget.rows)
        n_steps = options.n_steps(budget.rows - n_held_out)
        assert n_steps == budget.steps < 29
        assert options.warmup_steps == min(4, n_steps // 5)
        assert 8 * (n_steps - 1) < budget.rows - n_held_out <= 8 * n_steps, "rows that no step sees have no logits"
        n_measured = math.ceil(n_steps / math.ceil(n_steps / 5))
        seconds = 20 + 4 * 2 + 5 + 0.25 * budget.rows + 10 * n_steps + 0.5 * n_measured * n_held_out
        assert budget.seconds == pytest.approx(seconds)
        assert seconds <= 57 * minutes < COSTS.seconds(OPTIONS, n_steps + 1, budget.rows + 9)


def test_a_range_test_and_losses_at_cuts_are_counted() -> None:
    with_test = replace(OPTIONS, learning_rate="auto")
    hidden = replace(OPTIONS, loss="hidden", method="full")
    plain = COSTS.seconds(OPTIONS, 20, 180)
    assert COSTS.seconds(with_test, 20, 180) == pytest.approx(plain + 17 * 4)
    assert COSTS.seconds(hidden, 20, 180) == pytest.approx(plain + (6 - 5) * 18 * 0.5)


def test_more_time_than_needed_takes_all_steps() -> None:
    budget = fitting_steps(TimeLimit(100), OPTIONS, N_ROWS, COSTS)
    assert (budget.steps, budget.rows) == (29, N_ROWS)
    assert str(budget).startswith("--minutes=100 fits all 29 steps, on 254 rows: about ")
    repeated = fitting_steps(TimeLimit(5), replace(OPTIONS, epochs=2.0), N_ROWS, COSTS)
    assert repeated.steps == fitting_steps(TimeLimit(5), OPTIONS, N_ROWS, COSTS).steps, "new rows before repeated ones"


def test_too_little_time_is_refused(sentences: Sentences) -> None:
    for minutes in (0.0, -1.0, math.nan, math.inf):
        with sentences.refused(UserError, f"{minutes}"):
            TimeLimit(minutes)
    with sentences.refused(UserError, "a minute"):
        fitting_steps(TimeLimit(0.5), OPTIONS, N_ROWS, COSTS)
