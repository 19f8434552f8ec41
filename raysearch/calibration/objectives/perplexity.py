"""Language-modelling loss: the negative log-likelihood of the scored tokens, also reported as perplexity.

Source: equation 1 of Kim et al. 2026 (arXiv 2604.24938) with L the token-mean NLL; perplexity = exp(L).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from typing_extensions import override

from raysearch.calibration.batch import Batch, Form
from raysearch.calibration.objectives.base import Head, StateObjective, sum_by_sample, token_log_probs
from raysearch.core.measure import PERPLEXITY

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class PerplexityObjective(StateObjective):
    """-log p(token | tokens before it), summed over the scored tokens of each sample."""

    form = Form.TEXT
    differentiable = True
    measure = PERPLEXITY

    @override
    def losses(self, states: Tensor, batch: Batch, head: Head, dense: Tensor | None) -> Tensor:
        return sum_by_sample(batch, -token_log_probs(states, batch, head))
