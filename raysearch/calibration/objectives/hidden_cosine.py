"""How far the last hidden states turn away from the dense model's, before any word is chosen.

Source: the cosine criteria of Men et al. 2024 (ShortGPT, arXiv 2403.03853), from the dense to the pruned model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn import functional

from raysearch.calibration.batch import Batch, Form
from raysearch.calibration.objectives.base import Head, sum_by_sample
from raysearch.core.measure import Measure


@dataclass(frozen=True)
class HiddenCosineObjective:
    """1 - cos(pruned, dense) of the last hidden states that predict the scored tokens, summed over each sample's.

    The last hidden state is what enters the head, after the final norm: ``last_hidden_state`` in transformers.
    """

    form: ClassVar[Form] = Form.TEXT
    compares: ClassVar[bool] = True
    heads: ClassVar[int] = 0
    differentiable: ClassVar[bool] = False  # least where the two models are one
    measure: ClassVar[Measure] = Measure("1 - cosine per token", "token", "cosine")

    def losses(self, states: Tensor, batch: Batch, head: Head, dense: Tensor | None) -> Tensor:
        """See `StateObjective.losses`."""
        assert dense is not None, "a cosine is to something"
        pruned, reference = (head.last_hidden(part).double() for part in (states, dense))  # 1 - cos cancels digits
        turned = (1 - functional.cosine_similarity(pruned, reference, dim=-1)).clamp_min(0).cpu()
        return sum_by_sample(batch, turned)
