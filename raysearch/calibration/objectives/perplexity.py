"""Language-modelling loss: the negative log-likelihood of the scored tokens, reported as perplexity too.

Source: equation 1 of Kim et al. 2026 (arXiv 2604.24938) with L the token-mean NLL; perplexity = exp(L).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from raysearch.calibration.batch import Batch, Form
from raysearch.calibration.objectives.base import Head, sum_by_sample, token_log_probs
from raysearch.core.measure import PERPLEXITY, Measure


@dataclass(frozen=True)
class PerplexityObjective:
    """-log p(token | tokens before it), summed over the scored tokens of each sample."""

    form: ClassVar[Form] = Form.TEXT
    compares: ClassVar[bool] = False
    heads: ClassVar[int] = 1
    differentiable: ClassVar[bool] = True
    measure: ClassVar[Measure] = PERPLEXITY

    def losses(self, states: Tensor, batch: Batch, head: Head, dense: Tensor | None) -> Tensor:
        """See `StateObjective.losses`."""
        return sum_by_sample(batch, -token_log_probs(states, batch, head))
