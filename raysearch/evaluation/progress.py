"""Counters of computed work, and the progress of the current round."""

from __future__ import annotations

from dataclasses import dataclass

from raysearch.text.numbers import count


@dataclass
class Meter:
    """Counts the work of this process. A forward is that of a layer, or of the head, over the whole calibration.

    Args:
        layer_forwards: Layer-forwards that were computed.
        head_forwards: Head-forwards that were computed.
        layer_forwards_alone: Layer-forwards of all requested masks and statistics, as if the ledger had been empty.
        head_forwards_alone: The same for head-forwards.
        layer_tokens: Tokens that layers computed, once per layer, with padding.
        layer_tokens_by_row: The same, without padding, if each choice had a row.
        packed: Whether choices shared their prompt; None if there are no choices.
        samples_at_once: The smallest number of samples in a batch, if memory did not hold a shard; else None.
        computing_s: Seconds in which replicas computed, added over replicas.
        tokens_written: Tokens that the model generated, for objectives that generate.
    """

    layer_forwards: float = 0.0
    head_forwards: float = 0.0
    layer_forwards_alone: float = 0.0
    head_forwards_alone: float = 0.0
    layer_tokens: int = 0
    layer_tokens_by_row: int = 0
    packed: bool | None = None
    samples_at_once: int | None = None
    computing_s: float = 0.0
    tokens_written: int = 0


@dataclass(frozen=True)
class Progress:
    """The progress of the current round, in the forwards of its plans; or what it waits for.

    Args:
        layer_forwards: Layer-forwards that are done, in passes over all samples.
        layer_forwards_planned: Layer-forwards of the round.
        head_forwards: Head-forwards that are done.
        head_forwards_planned: Head-forwards of the round.
        masks_done: Masks, or statistics, that are done on all shards.
        masks_planned: Masks, or statistics, of the round.
        n_replicas: Replicas that have loaded the model.
        masks_elsewhere: Masks that the round waits for because another process computes them.
        elsewhere: The names of these processes.
        computing_s: Seconds in which replicas computed since the search began, added over replicas.
        stage: The stage of screening, 1-based; 0 if the round is not screened.
        stages: The number of stages; 0 if the search is not screened.
        tokens_written: Tokens that the model has generated since the search began.
        loading: What is read before there is any replica; empty otherwise.
    """

    layer_forwards: float = 0.0
    layer_forwards_planned: float = 0.0
    head_forwards: float = 0.0
    head_forwards_planned: float = 0.0
    masks_done: int = 0
    masks_planned: int = 0
    n_replicas: int = 0
    masks_elsewhere: int = 0
    elsewhere: str = ""
    computing_s: float = 0.0
    stage: int = 0
    stages: int = 0
    tokens_written: int = 0
    loading: str = ""

    @property
    def waiting(self) -> str:
        """A text on what the round waits for: a model, or masks that another process computes; empty if for nothing."""
        if not self.masks_elsewhere:
            return self.loading
        whose = f": {self.elsewhere}" if self.elsewhere else ""
        return f"waiting for {count(self.masks_elsewhere, 'mask')} that another search is computing{whose}"

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second that all replicas together generate; None if nothing is generated."""
        return self.tokens_written / self.computing_s * self.n_replicas if self.tokens_written else None
