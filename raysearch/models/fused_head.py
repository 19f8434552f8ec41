"""Log-probabilities of tokens by Liger's fused linear cross-entropy, in place of a model's own tail.

Liger multiplies some of the states at a time by the head's weights, and reads their logits once, as they are in the
model's dtype: they are never in memory all together, nor in float32. It adds up each row in one fixed order, so that
losses are the same bits in every run; cut-cross-entropy, which keeps no logits at all, adds parts of the vocabulary in
the order in which a GPU has finished them.

What a tail does after its final norm is found out by numbers that take the place of the projection's, so no table of
architectures is needed:

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
_BETWEEN = (0.25, 1.0, 8.0, 64.0)
_KNOWN = (_SMALL, _LARGE, *_BETWEEN, 0.0, *(-number for number in (_SMALL, *_BETWEEN, _LARGE)))


@dataclass(frozen=True)
class FusedHead:
    """A linear head, scaled and soft-capped, that gives log-probabilities in place of logits.

    Args:
        projection: The linear layer.
        scale: What its outputs are multiplied by.
        cap: The bound of the soft cap; None for none.
    """

    projection: nn.Linear
    scale: float
    cap: float | None

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
    """Find out what a model does after its final norm, by numbers that take the place of the projection's.

    Raises:
        UserError: It does more than a linear layer, scaling and a soft cap.
    """
    projection, kind = model.get_output_embeddings(), model.config.model_type
    found = _find(projection, model, tail) if isinstance(projection, nn.Linear) else None
    if found is None:
        raise UserError(
            f"model.fused_head=true computes a linear head with scaling and soft-capping, but {kind} does something "
            "else after its final norm; use model.fused_head=false"
        )
    return found


def _find(projection: nn.Linear, model: PreTrainedModel, tail: Head) -> FusedHead | None:
    """Return the head; None if its numbers tell of something else."""
    known = torch.tensor(_KNOWN, device=projection.weight.device)[:, None]  # float32, whatever the model's dtype
    width, generator = model.config.get_text_config().hidden_size, torch.Generator().manual_seed(0)
    hidden = torch.randn(len(known), width, generator=generator).to(model.device, model.dtype)
    entered: list[Tensor] = []

    def answer(states: Tensor) -> Tensor:
        entered.append(states)
        return known.repeat(1, projection.out_features).view(*states.shape[:-1], projection.out_features)

    with replaced({projection: answer}):
        logits = tail.logits(hidden).float()
    scale, most = float(logits[0, 0]) / _SMALL, float(logits[1, 0])
    cap = most if most < scale * _LARGE / 2 else None
    expected = scale * known if cap is None else cap * torch.tanh(scale * known / cap)
    is_whole = len(entered) == 1 and logits.shape == (len(known), projection.out_features)
    if not is_whole or not torch.allclose(logits, expected.expand_as(logits), rtol=1e-5):
        return None
    last = tail.last_hidden(hidden).to(entered[0])
    return FusedHead(projection, scale, cap) if torch.equal(entered[0].view_as(last), last) else None
