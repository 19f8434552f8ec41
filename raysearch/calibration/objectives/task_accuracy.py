"""Accuracy on items with choices: whether the likeliest choice is the right one.

Source: the metrics ``acc`` and ``acc_norm`` of Gao et al., Language Model Evaluation Harness.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from typing_extensions import override

from raysearch.calibration.batch import Batch, Form
from raysearch.calibration.objectives.base import Head, StateObjective, to_device
from raysearch.calibration.objectives.task_margin import choice_log_probs
from raysearch.core.measure import Measure

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class TaskAccuracyObjective(StateObjective):
    """1 for an item whose likeliest choice is not the right one, else 0; of equally likely choices, the first counts.

    Args:
        normalise: The divisor of a choice's log-probability: ``none`` (``acc`` of lm-eval), the number of its
            ``characters`` (``acc_norm``), or the number of its ``tokens``.
    """

    normalise: Literal["none", "characters", "tokens"] = "none"

    form = Form.CHOICES
    measure = Measure("errors per item", "sample", "accuracy")

    @override
    def losses(self, states: Tensor, batch: Batch, head: Head, dense: Tensor | None) -> Tensor:
        import torch

        assert batch.choices is not None, "the data offers choices"
        scores = choice_log_probs(states, batch, head)
        if self.normalise == "characters":
            scores = scores / to_device(batch.choices.characters, scores.device)
        elif self.normalise == "tokens":
            scores = scores / to_device(batch.scored_per_row, scores.device)
        item = to_device(batch.choices.item, scores.device)
        gold = to_device(batch.choices.gold, scores.device)
        best_score = scores.new_full((batch.n_samples,), -torch.inf).scatter_reduce(0, item, scores, "amax")
        last = len(scores) - 1
        rows = torch.arange(len(scores), device=scores.device).masked_fill(scores != best_score[item], last)
        first_best_row = rows.new_full((batch.n_samples,), last).scatter_reduce(0, item, rows, "amin")
        return (~gold[first_best_row]).double().masked_fill(best_score.isnan(), torch.nan)
