"""The contract of an objective: the loss of each sample.

The loss of a set of samples is the sum of their losses; lower is better. So a loss can be computed by shard and summed
in shard order. A `StateObjective` computes losses from the hidden states that predict the scored tokens, and gets
logits from the model's own tail, in chunks. A `ModelObjective` runs the masked model itself. Objectives import torch
only when they compute, so that a search whose evaluations are all in the ledger does not import it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt

from raysearch.calibration.batch import Batch, Form
from raysearch.core.measure import Measure
from raysearch.errors import UserError
from raysearch.generation.score import ScoredText
from raysearch.text.sentences import did_you_mean

if TYPE_CHECKING:
    import torch
    from torch import Tensor

#: Logits in memory at once, in the model's dtype, by the kind of device: enough for large matrix products.
_LOGITS_AT_ONCE = {"cpu": 2**24, "cuda": 2**28}
#: Logits in float32 at once, by the kind of device: few enough for the caches of a CPU.
_FLOATS_AT_ONCE = {"cpu": 2**19, "cuda": 2**27}


class Head(Protocol):
    """The model's own tail: the final norm, the output projection, and the steps after it (soft-capping, scaling).

    In a model with several streams, a hidden state that enters it is [streams, d] for each position, not [d].
    """

    @property
    def vocab_size(self) -> int:
        """The number of logits of a position."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Turn hidden states [n, d] into logits [n, vocab], position by position."""

    def last_hidden(self, hidden: Tensor) -> Tensor:
        """Turn hidden states [n, d] into the input of the output projection, [n, d]: after the final norm, if any."""

    def fused_log_probs(self, hidden: Tensor, tokens: Tensor) -> Tensor | None:
        """Return log p(token | hidden state) in nats, [n], by a fused or compiled kernel; None if there is no kernel.

        Args:
            hidden: Hidden states, [n, d].
            tokens: Token ids, [n].

        Returns:
            The log-probabilities, [n]; None if there is no kernel.
        """


def check_words(objective: Any) -> None:
    """Refuse options that are not among the values of their `Literal` type.

    This does not use pydantic, because replicas do not import it.
    """
    for name, kind in get_type_hints(type(objective)).items():
        if get_origin(kind) is Literal and (value := getattr(objective, name)) not in get_args(kind):
            raise UserError(f"objective.{name}={value} is unknown; {did_you_mean(str(value), get_args(kind))}")


class Objective(ABC):
    """A loss that a search minimises. Its options are the constructor's arguments, and part of the fingerprint.

    Attributes:
        form: The form of the samples that it needs.
    """

    form: ClassVar[Form]

    def __post_init__(self) -> None:
        check_words(self)

    @property
    @abstractmethod
    def measure(self) -> Measure:
        """The unit of the loss. A subclass may define it as a class attribute."""

    def check_samples(self, batch: Batch) -> None:  # noqa: B027
        """Refuse samples that have the right form, but that the objective cannot use.

        Raises:
            UserError: The samples cannot be used.
        """


class StateObjective(Objective):
    """An objective of the hidden states that predict the scored tokens.

    Attributes:
        compares: Whether it compares the states with those of the dense model.
        heads: The number of runs of the head for a mask.
        differentiable: Whether its gradients at the dense model are useful. They are zero if the loss is least there.
    """

    compares: ClassVar[bool] = False
    heads: ClassVar[int] = 1
    differentiable: ClassVar[bool] = False

    @abstractmethod
    def losses(self, states: Tensor, batch: Batch, head: Head, dense: Tensor | None) -> Tensor:
        """Return the loss of each sample of a shard.

        Args:
            states: The state that predicts each scored token, after the last kept layer, [n, d], or [n, streams, d].
            batch: The shard's samples.
            head: Turns states into logits.
            dense: The same states of the dense model; None unless the objective compares.

        Returns:
            Float64, [B], on the states' device, so that the caller need not wait for a GPU; differentiable in `states`
            if the objective is. The loss of a mask is their sum over all shards, divided by the divisor of `measure`.
        """


class ModelObjective(Objective):
    """An objective that runs the masked model itself."""

    @abstractmethod
    def model_losses(self, model: Any, tokenizer: Any, batch: Batch) -> ModelLosses:
        """Return the loss of each sample of a shard.

        Args:
            model: The transformers model, which behaves as if the mask's layers were deleted.
            tokenizer: The model's tokenizer.
            batch: The shard's samples.

        Returns:
            The losses, float64, [B], and what was computed for them.
        """


@dataclass(frozen=True)
class ModelLosses:
    """The result of a `ModelObjective` on a shard.

    Args:
        losses: The loss of each sample, float64, [B], on the CPU.
        n_tokens: The number of tokens that the model computed, padding included.
        texts: The generated text of each sample; empty if nothing was generated.
    """

    losses: Tensor
    n_tokens: int
    texts: Sequence[ScoredText] = ()


def by_chunk(head: Head, compute: Callable[..., Tensor], *states: Tensor) -> Tensor:
    """Compute one number per position, in slices whose logits fit into memory.

    If gradients are enabled, each slice is computed again in the backward pass, so that its logits need not be stored.

    Args:
        head: Gives the size of the vocabulary.
        compute: Turns slices of all `states` into a number per position.
        states: Tensors with one row for each of the n positions.

    Returns:
        Float64, [n], on the states' device.
    """
    import torch
    from torch.utils.checkpoint import checkpoint

    if not len(states[0]):
        return states[0].new_zeros(0, dtype=torch.float64)
    if torch.is_grad_enabled():
        compute = partial(checkpoint, compute, use_reentrant=False, preserve_rng_state=False)
    return _in_slices(head, _LOGITS_AT_ONCE, compute, states).double()


def in_cache(head: Head, compute: Callable[..., Tensor], *logits: Tensor) -> Tensor:
    """Compute one number per row of logits, in slices that fit into a CPU's cache.

    Args:
        head: Gives the size of the vocabulary.
        compute: Turns slices of all `logits` into a number per row.
        logits: Tensors with one row for each of the n positions.

    Returns:
        A tensor [n], on the device of the logits.
    """
    return _in_slices(head, _FLOATS_AT_ONCE, compute, logits)


def _in_slices(
    head: Head, most_logits: Mapping[str, int], compute: Callable[..., Tensor], tensors: Sequence[Tensor]
) -> Tensor:
    """Compute one number per row, in slices of at most so many logits, by the kind of device."""
    import torch

    n_logits = most_logits.get(tensors[0].device.type, most_logits["cpu"])
    rows = max(1, n_logits // head.vocab_size)
    slices = zip(*(tensor.split(rows) for tensor in tensors), strict=True)
    return torch.cat([compute(*slice_of_each) for slice_of_each in slices])


def token_log_probs(states: Tensor, batch: Batch, head: Head) -> Tensor:
    """Return log p(token | tokens before it) of each scored token, in nats: float64, [n], on the states' device.

    It is the token's logit minus the logarithm of the summed exponentials, in float32. Its mean differs by less than
    1e-7 from that of a float64 log-softmax. PyTorch's cross entropy subtracts the largest logit first, and its mean has
    a bias of 8e-6 nats.

    Args:
        states: The state that predicts each scored token, [n, d].
        batch: The samples.
        head: Turns states into logits.

    Returns:
        The log-probabilities, float64, [n].
    """
    targets = to_device(batch.targets, states.device)
    fused = head.fused_log_probs(states, targets)
    if fused is not None:
        return fused.double()

    def compute(state_slice: Tensor, target_slice: Tensor) -> Tensor:
        return in_cache(head, log_prob, head.logits(state_slice), target_slice[:, None])

    return by_chunk(head, compute, states, targets)


def log_prob(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return the log-probability of one token per row, float32, [n].

    Args:
        logits: Logits, [n, vocab].
        tokens: Token ids, [n, 1].

    Returns:
        The log-probabilities in nats, float32, [n].
    """
    logits = logits.float()
    return logits.gather(1, tokens)[:, 0] - logits.logsumexp(-1)


def log_probs(logits: Tensor) -> Tensor:
    """Return the log-probabilities of all tokens, float32, [n, vocab]; see `token_log_probs` for single tokens."""
    centered = logits.float() - logits.amax(-1, keepdim=True)  # rounds the small numbers of likely tokens less
    return centered - centered.logsumexp(-1, keepdim=True)


def to_device(values: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Return an array as a tensor on a device, without waiting for a GPU.

    Args:
        values: The array.
        device: The device of the tensor.

    Returns:
        A tensor with the array's shape and dtype. The copy to a GPU may still be in progress.
    """
    import torch

    tensor = torch.from_numpy(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def sum_by_sample(batch: Batch, values: Tensor) -> Tensor:
    """Return the sum of the scored tokens' losses of each sample, float64, [B].

    Args:
        batch: The samples.
        values: The loss of each scored token, [n].

    Returns:
        The sums, float64, [B], on the device of `values`.
    """
    return sum_by(batch.sample_of_row[batch.row_of_token], values, batch.n_samples)


def sum_by(group: npt.NDArray[np.int64], values: Tensor, n_groups: int) -> Tensor:
    """Return the sum of the values of each group, float64, [n_groups].

    The values of a group are added in their order, so the sum depends on neither the other groups nor the chunks.

    Args:
        group: The group of each value, int64, [n], ascending from 0.
        values: The values, [n].
        n_groups: The number of groups.

    Returns:
        The sums, float64, [n_groups]; 0 for a group without values.
    """
    import torch

    lengths = to_device(np.bincount(group, minlength=n_groups), values.device)
    return torch.segment_reduce(values.double(), "sum", lengths=lengths, initial=0.0, unsafe=True)
