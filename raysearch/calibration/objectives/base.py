"""The contract of an objective: from final hidden states to one loss per sample.

An objective is always a per-sample loss in nats that adds up over samples, lower is better, so that it can be split
over shards and summed again in shard order. It sees the hidden states that leave the last kept layer and reaches
logits through the model's own tail, in chunks, at the positions it scores.
"""

from __future__ import annotations

from typing import Protocol

import torch

from raysearch.calibration.batch import Batch


class Head(Protocol):
    """The model's own tail: final norm, output projection and what follows it (soft-capping, scaling)."""

    @property
    def vocab_size(self) -> int:
        """Logits of a position."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states [n, d] to logits [n, vocab], position by position."""
        ...


class Objective(Protocol):
    """What a search minimises. Its options are its constructor's arguments and part of the fingerprint."""

    def losses(self, hidden: torch.Tensor, batch: Batch, head: Head) -> torch.Tensor:
        """The summed loss of each sample of a shard.

        Args:
            hidden: What leaves the last kept layer, [B, T, d].
            batch: The shard's samples.
            head: Turns hidden states into logits.

        Returns:
            Nats per sample, float64, [B], on the CPU, differentiable in `hidden`. The loss of a mask is their sum over
            all shards divided by the scored tokens.
        """
        ...
