"""Log-probabilities of tokens by Liger's fused linear cross-entropy, in place of a model's own tail.

Liger multiplies a part of the states at a time by the head's weights, and reads their logits once, in the model's
dtype: the logits are never all in memory, nor in float32. It sums each row in one fixed order, so losses have the same
bits in every run. (Cut-cross-entropy, which stores no logits at all, sums parts of the vocabulary in the order in which
a GPU finishes them.)

A tail is assumed to scale and cap the output of the projection:

    logits = cap * tanh(scale * (W state + b) / cap)                   without a cap: scale * (W state + b)

Scale and cap are measured by replacing the projection's output by two numbers, so no table of architectures is needed.
`raysearch.models.verification.verify` refuses a model whose tail does more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from raysearch.calibration.objectives.base import Head
from raysearch.errors import UserError
from raysearch.models.layers import replaced

#: Logits in memory at once, in the model's dtype: enough rows for a large matrix product.
_LOGITS_AT_ONCE = 2**26
_SMALL = 2.0**-10  # no cap changes it
_LARGE = 2.0**20  # any cap replaces it


@dataclass(frozen=True)
class FusedHead:
    """A linear head, scaled and soft-capped, that computes log-probabilities without storing logits."""

    projection: nn.Linear
    scale: float  #: the factor of its outputs
    cap: float | None  #: the bound of the soft cap; None for none

    def log_probs(self, last_hidden: Tensor, tokens: Tensor) -> Tensor:
        """Return the log-probability of a token after each state, without gradients.

        Args:
            last_hidden: The states after the final norm, [n, d], at least one.
            tokens: The tokens, int64, [n].

        Returns:
            The log-probabilities in nats, float32, [n].
        """
        from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

        weight = self.projection.weight
        bias = self.projection.bias
        states = last_hidden.to(weight) * self.scale
        logits_per_number = max(1, _LOGITS_AT_ONCE // states.numel())  # in memory, for each number in `states`
        with torch.cuda.device_of(weight):  # Triton launches on the current device
            losses: Tensor = liger_fused_linear_cross_entropy(
                states,
                weight,
                tokens.to(weight.device),
                None if bias is None else bias * self.scale,
                reduction="none",
                softcap=self.cap,
                chunk_mem_const=logits_per_number,
            )
        return -losses.to(last_hidden.device)


@torch.no_grad()
def find_fused_head(model: PreTrainedModel, tail: Head, token_shape: Sequence[int]) -> FusedHead:
    """Return the head of a model, with its measured scale and cap.

    Args:
        model: The model.
        tail: Computes the model's logits from hidden states.
        token_shape: The shape of a token's hidden state: [d], or [streams, d].

    Returns:
        The head. Its cap is None if the model does not cap its logits.

    Raises:
        UserError: The head is not linear.
    """
    projection = model.get_output_embeddings()
    if not isinstance(projection, nn.Linear):
        raise UserError(
            f"model.fused_head=true computes a linear head, but that of {model.config.model_type} is none; use "
            "model.fused_head=false"
        )
    # The outputs are float32, whatever the model's dtype is.
    outputs = torch.tensor([[_SMALL], [_LARGE]], device=projection.weight.device)
    hidden = torch.zeros(len(outputs), *token_shape, device=model.device, dtype=model.dtype)

    def project(states: Tensor) -> Tensor:
        return outputs.repeat(1, projection.out_features).view(*states.shape[:-1], projection.out_features)

    with replaced({projection: project}):
        small_logit, large_logit = tail.logits(hidden)[:, 0].tolist()
    scale = small_logit / _SMALL
    is_capped = large_logit < scale * _LARGE / 2
    return FusedHead(projection, scale, large_logit if is_capped else None)
