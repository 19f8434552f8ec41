"""Accuracy on items with choices: whether the likeliest choice is the right one.

Source: the metrics ``acc`` and ``acc_norm`` of Gao et al., Language Model Evaluation Harness.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from typing_extensions import override

from raysearch.calibration.batch import Batch, Form
from raysearch.calibration.objectives.base import Head, StateObjective
from raysearch.calibration.objectives.task_margin import choice_log_probs
from raysearch.core.measure import Measure

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class TaskAccuracyObjective(StateObjective):
    """1 for an item whose likeliest choice is not the right one, else 0; the first of equally likely choices is taken.

    Args:
        normalise: What a choice's log-probability is divided by: ``none`` (``acc`` of lm-eval), its ``characters``
            (``acc_norm``), or its ``tokens``.
    """

    normalise: Literal["none", "characters", "tokens"] = "none"

    form = Form.CHOICES
    measure = Measure("errors per item", "sample", "accuracy")

    @override
    def losses(self, states: Tensor, batch: Batch, head: Head, dense: Tensor | None) -> Tensor:
        import torch

        assert batch.choices is not None, "the data offers choices"
        scores = choice_log_probs(states, batch, head).cpu().numpy()
        if self.normalise == "characters":
            scores = scores / batch.choices.characters
        elif self.normalise == "tokens":
            scores = scores / batch.scored_per_row
        wrong = [not batch.choices.gold[rows[scores[rows].argmax()]] for rows in batch.rows_of_sample]
        return torch.tensor(wrong, dtype=torch.float64)
