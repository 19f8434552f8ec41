"""Task-likelihood margin: the difference in log-likelihood between the right answer and the wrong answers.

Source: the task likelihood difference of Wee et al. 2025 (PuDDing, arXiv 2502.04348), in its mean form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from typing_extensions import override

from raysearch.calibration.batch import Batch, Form
from raysearch.calibration.objectives.base import Head, StateObjective, sum_by, to_device, token_log_probs
from raysearch.core.measure import Measure

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class TaskMarginObjective(StateObjective):
    """-(l(gold) - mean of l(c) over the wrong choices c), where l is the log-probability of a choice's tokens.

    Args:
        tokens: Whether l is the ``mean`` over a choice's tokens, or their ``sum``.
        against: What gold is compared with: the ``mean`` of the wrong choices, the best wrong choice (``max``), or
            their ``sum``, in which l(gold) is multiplied by the number of wrong choices (PuDDing's code).
        items: Whether the loss is the ``mean`` over the items, or their ``sum``, which grows with their number.
    """

    tokens: Literal["mean", "sum"] = "mean"
    against: Literal["mean", "max", "sum"] = "mean"
    items: Literal["mean", "sum"] = "mean"

    form = Form.CHOICES
    differentiable = True

    @property
    @override
    def measure(self) -> Measure:
        if self.items == "sum":
            return Measure("nats", "set", "margin")
        return Measure("nats per answer token" if self.tokens == "mean" else "nats per answer", "sample", "margin")

    @override
    def losses(self, states: Tensor, batch: Batch, head: Head, dense: Tensor | None) -> Tensor:
        import torch

        assert batch.choices is not None, "the data offers choices"
        scores = choice_log_probs(states, batch, head)
        if self.tokens == "mean":
            scores = scores / to_device(batch.scored_per_row, scores.device)
        gold = batch.choices.gold
        right_scores = scores[to_device(np.flatnonzero(gold), scores.device)]
        wrong_scores = scores[to_device(np.flatnonzero(~gold), scores.device)]
        item_of_wrong = batch.choices.item[~gold]
        if self.against == "max":
            lowest = torch.full_like(right_scores, -torch.inf)
            item = to_device(item_of_wrong, wrong_scores.device)
            return lowest.scatter_reduce(0, item, wrong_scores, "amax") - right_scores
        n_wrong = sum_by(item_of_wrong, torch.ones_like(wrong_scores), batch.n_samples)
        margins = n_wrong * right_scores - sum_by(item_of_wrong, wrong_scores, batch.n_samples)
        return -margins if self.against == "sum" else -margins / n_wrong


def choice_log_probs(states: Tensor, batch: Batch, head: Head) -> Tensor:
    """Return the summed log-probability of each row's scored tokens, in nats: float64, [R], on the states' device.

    Args:
        states: The state that predicts each scored token, [n, d].
        batch: The items.
        head: Turns states into logits.

    Returns:
        The sums, float64, [R].
    """
    return sum_by(batch.row_of_token, token_log_probs(states, batch, head), len(batch.input_ids))
