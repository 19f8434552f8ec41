"""The angle between the last hidden states of the pruned and the dense model.

Source: the cosine criteria of Men et al. 2024 (ShortGPT, arXiv 2403.03853), from the dense to the pruned model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from typing_extensions import override

from raysearch.calibration.batch import Batch, Form
from raysearch.calibration.objectives.base import Head, StateObjective, sum_by_sample
from raysearch.core.measure import Measure

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class HiddenCosineObjective(StateObjective):
    """1 - cos(pruned, dense) of the last hidden states that predict the scored tokens, summed over a sample's tokens.

    The last hidden state is the input of the output projection, after the final norm: ``last_hidden_state`` in
    transformers.
    """

    form = Form.TEXT
    compares = True
    heads = 0
    measure = Measure("1 - cosine per token", "token", "cosine")

    @override
    def losses(self, states: Tensor, batch: Batch, head: Head, dense: Tensor | None) -> Tensor:
        from torch.nn import functional

        assert dense is not None, "the objective compares"
        pruned = head.last_hidden(states).double()  # float64, because 1 - cos cancels leading digits
        reference = head.last_hidden(dense).double()
        distances = (1 - functional.cosine_similarity(pruned, reference, dim=-1)).clamp_min(0)
        return sum_by_sample(batch, distances)
