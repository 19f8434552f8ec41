"""Divergence of the next-token distributions from the dense model's, on any text.

Source: the KL criterion of Sieberling et al. 2025 (EvoPress, arXiv 2410.14649).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from typing_extensions import override

from raysearch.calibration.batch import Batch, Form
from raysearch.calibration.objectives.base import Head, StateObjective, by_chunk, in_cache, log_probs, sum_by_sample
from raysearch.core.measure import Measure

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class KLObjective(StateObjective):
    """The divergence between the dense and the pruned model's distribution of each scored token, summed by sample.

    Args:
        direction: ``forward`` is KL(dense || pruned), which penalises tokens that only the dense model finds likely;
            ``reverse`` is KL(pruned || dense), which penalises tokens that only the pruned model finds likely; ``js``
            is the Jensen-Shannon divergence: the mean of the divergences of both from their mixture, at most log 2.
    """

    direction: Literal["forward", "reverse", "js"] = "forward"

    form = Form.TEXT
    compares = True
    heads = 2
    measure = Measure("nats per token", "token")

    @override
    def losses(self, states: Tensor, batch: Batch, head: Head, dense: Tensor | None) -> Tensor:
        import torch

        assert dense is not None, "the objective compares"

        def divergence(*logits: Tensor) -> Tensor:
            pruned, reference = map(log_probs, logits)
            if self.direction == "forward":
                return _kl(reference, pruned)
            if self.direction == "reverse":
                return _kl(pruned, reference)
            mixture = torch.logaddexp(pruned, reference) - math.log(2)
            return (_kl(reference, mixture) + _kl(pruned, mixture)) / 2

        def divergence_of_states(pruned: Tensor, reference: Tensor) -> Tensor:
            return in_cache(head, divergence, head.logits(pruned), head.logits(reference))

        return sum_by_sample(batch, by_chunk(head, divergence_of_states, states, dense))


def _kl(p: Tensor, q: Tensor) -> Tensor:
    """Return KL(p || q) of log-probabilities, [n, vocab] to [n]; a token of probability 0 in p adds 0."""
    import torch

    return torch.where(p.isneginf(), 0.0, p.exp() * (p - q)).sum(-1)
