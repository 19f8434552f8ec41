"""The contract of an objective: what one sample loses.

An objective is a loss per sample that adds up over samples, lower is better, so that it can be split over shards and
summed again in shard order. Nearly all objectives are computed from the hidden states that predict the scored tokens
(`StateObjective`); they reach logits through the model's own tail, in chunks. One that has to see the masked model at
work is a `ModelObjective`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from raysearch.calibration.batch import Batch, Form
from raysearch.core.measure import Measure

#: Logits that stand in memory at once. A CPU likes them near its caches, a GPU wants large matrix products.
_LOGITS_AT_ONCE = {"cpu": 2**22, "cuda": 2**27}


class Head(Protocol):
    """The model's own tail: final norm, output projection and what follows it (soft-capping, scaling)."""

    @property
    def vocab_size(self) -> int:
        """Logits of a position."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [n, d] to logits [n, vocab], position by position."""
        ...

    def last_hidden(self, hidden: Tensor) -> Tensor:
        """Hidden states [n, d] to what enters the output projection, [n, d]: after the final norm, if there is one."""
        ...


class Objective(Protocol):
    """What a search minimises. Its options are its constructor's arguments and part of the fingerprint."""

    form: ClassVar[Form]  # what it asks of a sample

    @property
    def measure(self) -> Measure:
        """What its loss is counted in."""
        ...


@runtime_checkable
class StateObjective(Objective, Protocol):
    """An objective of the hidden states that predict the scored tokens."""

    compares: ClassVar[bool]  # with the dense model
    heads: ClassVar[int]  # times the head runs for a mask
    differentiable: ClassVar[bool]  # whether gradients at the dense model say something

    def losses(self, states: Tensor, batch: Batch, head: Head, dense: Tensor | None) -> Tensor:
        """The loss of each sample of a shard.

        Args:
            states: The state that predicts each scored token, as it leaves the last kept layer, [n, d].
            batch: The shard's samples.
            head: Turns states into logits.
            dense: The same states of the dense model, [n, d]; None unless the objective compares.

        Returns:
            Float64, [B], on the CPU, differentiable in `states` if the objective is. The loss of a mask is their sum
            over all shards, divided as `measure` says.
        """
        ...


@runtime_checkable
class ModelObjective(Objective, Protocol):
    """An objective of what the masked model does."""

    def model_losses(self, model: Any, tokenizer: Any, batch: Batch) -> tuple[Tensor, int]:
        """The loss of each sample of a shard.

        Args:
            model: The transformers model, which behaves as if the mask's layers were deleted.
            tokenizer: Its tokenizer.
            batch: The shard's samples.

        Returns:
            The losses, float64, [B], on the CPU; and the tokens that the model was run on, padding included.
        """
        ...


def by_chunk(head: Head, compute: Callable[..., Tensor], *parts: Tensor) -> Tensor:
    """One number for each of n positions, [n], in slices whose logits fit into memory: float64, on the CPU."""
    rows = max(1, _LOGITS_AT_ONCE.get(parts[0].device.type, 2**22) // head.vocab_size)
    slices = zip(*(part.split(rows) for part in parts), strict=True)
    found = [compute(*slice_) for slice_ in slices] if len(parts[0]) else []
    return torch.cat(found).double().cpu() if found else torch.zeros(0, dtype=torch.float64)


def token_log_probs(states: Tensor, batch: Batch, head: Head) -> Tensor:
    """log p(token | tokens before it) of each scored token, in nats: float64, [n], on the CPU."""

    def log_probs(slice_: Tensor, wanted: Tensor) -> Tensor:
        return -torch.nn.functional.cross_entropy(head.logits(slice_).float(), wanted, reduction="none")

    return by_chunk(head, log_probs, states, torch.from_numpy(batch.targets).to(states.device))


def sum_by_sample(batch: Batch, values: Tensor) -> Tensor:
    """Adds what the scored tokens lose, [n], by their sample: float64, [B]."""
    return sum_by(batch.sample_of_row[batch.row_of_token], values, batch.n_samples)


def sum_by(group: Any, values: Tensor, n_groups: int) -> Tensor:
    """Adds values [n] by their group [n]: float64, [n_groups].

    On the CPU, index_add adds one by one in order: the sum depends on neither the device nor the chunks.
    """
    return torch.zeros(n_groups, dtype=torch.float64).index_add(0, torch.as_tensor(group), values)
