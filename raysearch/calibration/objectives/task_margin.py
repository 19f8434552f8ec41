"""Task-likelihood margin: how much likelier the right answer is than the wrong ones.

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
        against: What gold is compared with: the ``mean`` of the wrong choices, the best of them (``max``), or their
            ``sum``, where gold counts as often as there are wrong ones (PuDDing's code).
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
        item, gold = batch.choices.item, batch.choices.gold
        right = scores[to_device(np.flatnonzero(gold), scores.device)]
        item_of_wrong, wrong = item[~gold], scores[to_device(np.flatnonzero(~gold), scores.device)]
        if self.against == "max":
            best = torch.full_like(right, -torch.inf)
            return best.scatter_reduce(0, to_device(item_of_wrong, wrong.device), wrong, "amax") - right
        n_wrong = sum_by(item_of_wrong, torch.ones_like(wrong), batch.n_samples)
        margins = n_wrong * right - sum_by(item_of_wrong, wrong, batch.n_samples)
        return -margins if self.against == "sum" else -margins / n_wrong


def choice_log_probs(states: Tensor, batch: Batch, head: Head) -> Tensor:
    """Return the log-probability of each row's scored tokens, summed, in nats: float64, [R], on the states' device."""
    return sum_by(batch.row_of_token, token_log_probs(states, batch, head), len(batch.input_ids))
