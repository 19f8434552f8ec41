"""Log-probabilities of tokens by Liger's fused linear cross-entropy, in place of a model's own tail.

Liger multiplies some of the states at a time by the head's weights, and reads their logits once, as they are in the
model's dtype: they are never in memory all together, nor in float32. It adds up each row in one fixed order, so that
losses are the same bits in every run; cut-cross-entropy, which keeps no logits at all, adds parts of the vocabulary in
the order in which a GPU has finished them.

A tail is taken to scale and cap what the projection gives. Two numbers in place of that tell by how much, so no table
of architectures is needed; `raysearch.models.verification.verify` refuses a model whose tail does more:

    logits = cap * tanh(scale * (W state + b) / cap)                   without a cap: scale * (W state + b)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from raysearch.calibration.objectives.base import Head
from raysearch.errors import UserError
from raysearch.models.layers import replaced

#: Logits in memory at once, in the model's dtype: enough rows for a large matrix product.
_LOGITS_AT_ONCE = 2**26
#: So small that no cap changes it, and so large that a cap alone is left of it.
_SMALL, _LARGE = 2.0**-10, 2.0**20


@dataclass(frozen=True)
class FusedHead:
    """A linear head, scaled and soft-capped, that gives log-probabilities in place of logits."""

    projection: nn.Linear
    scale: float  #: what its outputs are multiplied by
    cap: float | None  #: the bound of the soft cap; None for none

    def log_probs(self, last_hidden: Tensor, tokens: Tensor) -> Tensor:
        """Return the log-probability of a token after each state; without gradients.

        Args:
            last_hidden: The states after the final norm, [n, d], at least one.
            tokens: The tokens, int64, [n].

        Returns:
            In nats, float32, [n].
        """
        from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

        weight, bias = self.projection.weight, self.projection.bias
        states = last_hidden.to(weight) * self.scale
        with torch.cuda.device_of(weight):  # Triton launches on the current one
            losses: Tensor = liger_fused_linear_cross_entropy(
                states,
                weight,
                tokens.to(weight.device),
                None if bias is None else bias * self.scale,
                reduction="none",
                softcap=self.cap,
                chunk_mem_const=max(1, _LOGITS_AT_ONCE // states.numel()),  # logits at once for each number of `states`
            )
        return -losses.to(last_hidden.device)


@torch.no_grad()
def find_fused_head(model: PreTrainedModel, tail: Head) -> FusedHead:
    """Return the head of a model, and find out how it is scaled and capped; a `UserError` if it is not linear."""
    projection = model.get_output_embeddings()
    if not isinstance(projection, nn.Linear):
        raise UserError(
            f"model.fused_head=true computes a linear head, but that of {model.config.model_type} is none; use "
            "model.fused_head=false"
        )
    known = torch.tensor([[_SMALL], [_LARGE]], device=projection.weight.device)  # float32, whatever the model's dtype
    hidden = torch.zeros(len(known), model.config.get_text_config().hidden_size, device=model.device, dtype=model.dtype)

    def answer(states: Tensor) -> Tensor:
        return known.repeat(1, projection.out_features).view(*states.shape[:-1], projection.out_features)

    with replaced({projection: answer}):
        small, most = tail.logits(hidden)[:, 0].tolist()
    scale = small / _SMALL
    return FusedHead(projection, scale, most if most < scale * _LARGE / 2 else None)
