"""The contract of an objective: the loss of each sample.

An objective is a loss per sample that adds up over samples, lower is better, so that it can be split over shards and
summed again in shard order. Most are computed from the hidden states that predict the scored tokens
(`StateObjective`), and get logits from the model's own tail, in chunks. One that runs the masked model itself is a
`ModelObjective`. Objectives import torch when they compute, so that a search that the ledger answers needs none.
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
from raysearch.errors import UserError, did_you_mean
from raysearch.generation.score import ScoredText

if TYPE_CHECKING:
    import torch
    from torch import Tensor

#: Logits in memory at once, in the model's dtype: many enough for large matrix products.
_LOGITS_AT_ONCE = {"cpu": 2**24, "cuda": 2**28}
#: Those of them in float32 at once: few enough for the caches of a CPU.
_FLOATS_AT_ONCE = {"cpu": 2**19, "cuda": 2**27}


class Head(Protocol):
    """The model's own tail: final norm, output projection and what follows it (soft-capping, scaling)."""

    @property
    def vocab_size(self) -> int:
        """Logits of a position."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Turn hidden states [n, d] into logits [n, vocab], position by position."""

    def last_hidden(self, hidden: Tensor) -> Tensor:
        """Turn hidden states [n, d] into the input of the output projection, [n, d]: after the final norm, if any."""

    def fused_log_probs(self, hidden: Tensor, tokens: Tensor) -> Tensor | None:
        """Return log p(token | hidden state) in nats, [n], by a fused or compiled kernel; None without one."""


def check_words(objective: Any) -> None:
    """Refuse options that are none of the words of their type; without pydantic, which replicas do without."""
    for name, kind in get_type_hints(type(objective)).items():
        if get_origin(kind) is Literal and (value := getattr(objective, name)) not in get_args(kind):
            raise UserError(f"objective.{name}={value} is unknown; {did_you_mean(str(value), get_args(kind))}")


class Objective(ABC):
    """A loss that a search minimises. Its options are its constructor's arguments and part of the fingerprint.

    Attributes:
        form: What it needs of a sample.
    """

    form: ClassVar[Form]

    def __post_init__(self) -> None:
        check_words(self)

    @property
    @abstractmethod
    def measure(self) -> Measure:
        """The unit of its loss; a class attribute will do."""

    def check_samples(self, batch: Batch) -> None:  # noqa: B027
        """Refuse samples of its form that it cannot work on, with a `UserError`."""


class StateObjective(Objective):
    """An objective of the hidden states that predict the scored tokens.

    Attributes:
        compares: Whether it compares with the dense model's states.
        heads: How often the head runs for a mask.
        differentiable: Whether its gradients at the dense model are of use: not where its loss is least there.
    """

    compares: ClassVar[bool] = False
    heads: ClassVar[int] = 1
    differentiable: ClassVar[bool] = False

    @abstractmethod
    def losses(self, states: Tensor, batch: Batch, head: Head, dense: Tensor | None) -> Tensor:
        """Return the loss of each sample of a shard.

        Args:
            states: The state that predicts each scored token, as it leaves the last kept layer, [n, d].
            batch: The shard's samples.
            head: Turns states into logits.
            dense: The same states of the dense model, [n, d]; None unless the objective compares.

        Returns:
            Float64, [B], on the states' device, so that a GPU need not be waited for; differentiable in `states` if the
            objective is. The loss of a mask is their sum over all shards, divided as `measure` says.
        """


class ModelObjective(Objective):
    """An objective that runs the masked model itself."""

    @abstractmethod
    def model_losses(self, model: Any, tokenizer: Any, batch: Batch) -> ModelLosses:
        """Return the loss of each sample of a shard.

        Args:
            model: The transformers model, which behaves as if the mask's layers were deleted.
            tokenizer: Its tokenizer.
            batch: The shard's samples.
        """


@dataclass(frozen=True)
class ModelLosses:
    """The losses that a `ModelObjective` found.

    Args:
        losses: Of each sample, float64, [B], on the CPU.
        n_tokens: Tokens that the model was run on, padding included.
        texts: What was generated for each sample; empty if nothing was.
    """

    losses: Tensor
    n_tokens: int
    texts: Sequence[ScoredText] = ()


def by_chunk(head: Head, compute: Callable[..., Tensor], *states: Tensor) -> Tensor:
    """Compute one number per position, [n], in slices whose logits fit into memory: float64, on the states' device.

    With gradients enabled each slice is computed once more in the backward pass, which needs no other memory.
    """
    import torch
    from torch.utils.checkpoint import checkpoint

    if not len(states[0]):
        return states[0].new_zeros(0, dtype=torch.float64)
    if torch.is_grad_enabled():
        compute = partial(checkpoint, compute, use_reentrant=False, preserve_rng_state=False)
    return _in_slices(head, _LOGITS_AT_ONCE, compute, states).double()


def in_cache(head: Head, compute: Callable[..., Tensor], *logits: Tensor) -> Tensor:
    """Compute one number per row of logits, [n], in slices that a CPU's cache holds."""
    return _in_slices(head, _FLOATS_AT_ONCE, compute, logits)


def _in_slices(head: Head, most: Mapping[str, int], compute: Callable[..., Tensor], parts: Sequence[Tensor]) -> Tensor:
    """Compute one number per row, in slices of so many rows times the vocabulary, by the kind of device."""
    import torch

    rows = max(1, most.get(parts[0].device.type, most["cpu"]) // head.vocab_size)
    return torch.cat([compute(*each) for each in zip(*(part.split(rows) for part in parts), strict=True)])


def token_log_probs(states: Tensor, batch: Batch, head: Head) -> Tensor:
    """Return log p(token | tokens before it) of each scored token, in nats: float64, [n], on the states' device.

    It is the token's logit minus the logarithm of the summed exponentials, in float32: its mean lies within 1e-7 of a
    float64 log-softmax. PyTorch's cross entropy takes the largest logit from all of them first, and lies 8e-6 nats off
    to one side.
    """
    targets = to_device(batch.targets, states.device)
    fused = head.fused_log_probs(states, targets)
    if fused is not None:
        return fused.double()
    return by_chunk(
        head, lambda some, wanted: in_cache(head, log_prob, head.logits(some), wanted[:, None]), states, targets
    )


def log_prob(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return the log-probability of a token a row, in float32: logits [n, vocab] and tokens [n, 1] to [n]."""
    logits = logits.float()
    return logits.gather(1, tokens)[:, 0] - logits.logsumexp(-1)


def log_probs(logits: Tensor) -> Tensor:
    """Return the log-probabilities of all tokens, float32, [n, vocab], as `token_log_probs` has them for some."""
    centered = logits.float() - logits.amax(-1, keepdim=True)  # rounds the small numbers of likely tokens more finely
    return centered - centered.logsumexp(-1, keepdim=True)


def to_device(values: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Return an array as a tensor on a device, without waiting for a GPU."""
    import torch

    tensor = torch.from_numpy(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def sum_by_sample(batch: Batch, values: Tensor) -> Tensor:
    """Add the losses of the scored tokens, [n], by their sample: float64, [B]."""
    return sum_by(batch.sample_of_row[batch.row_of_token], values, batch.n_samples)


def sum_by(group: npt.NDArray[np.int64], values: Tensor, n_groups: int) -> Tensor:
    """Add values [n] by their group [n], numbers that ascend from 0: float64, [n_groups].

    Each group is added in its own order, so the sum depends on neither the other groups nor the chunks.
    """
    import torch

    lengths = to_device(np.bincount(group, minlength=n_groups), values.device)
    return torch.segment_reduce(values.double(), "sum", lengths=lengths, initial=0.0, unsafe=True)
