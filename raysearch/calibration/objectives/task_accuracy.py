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
        scores = choice_log_probs(states, batch, head)
        if self.normalise == "characters":
            scores = scores / to_device(batch.choices.characters, scores.device)
        elif self.normalise == "tokens":
            scores = scores / to_device(batch.scored_per_row, scores.device)
        item, gold = (to_device(array, scores.device) for array in (batch.choices.item, batch.choices.gold))
        best = scores.new_full((batch.n_samples,), -torch.inf).scatter_reduce(0, item, scores, "amax")
        last = len(scores) - 1
        rows = torch.arange(len(scores), device=scores.device).masked_fill(scores != best[item], last)
        first = rows.new_full((batch.n_samples,), last).scatter_reduce(0, item, rows, "amin")  # of those as good
        return (~gold[first]).double().masked_fill(best.isnan(), torch.nan)
