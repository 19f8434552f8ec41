"""Counters of what has been computed, and of how far the current round is."""

from __future__ import annotations

from dataclasses import dataclass

from raysearch.core.formatting import count


@dataclass
class Meter:
    """Counts what this process has computed. A forward is one of a layer, or of the head, over the whole calibration.

    Tokens that go through layers are counted once a layer: as they were run (padding included), and as the same
    layers would have run them with a row for each choice (without padding).
    """

    layer_forwards: float = 0.0
    head_forwards: float = 0.0
    layer_forwards_alone: float = 0.0  # of all that was asked for, as if the ledger had been empty
    head_forwards_alone: float = 0.0
    layer_tokens: int = 0
    layer_tokens_by_row: int = 0
    packed: bool | None = None  # whether choices shared their prompt
    samples_at_once: int | None = None  # the fewest, where memory did not hold a shard; None where it did
    computing_s: float = 0.0
    tokens_written: int = 0  # by objectives that generate


@dataclass(frozen=True)
class Progress:
    """How far the current round is, in the forwards of its plans; or that another search computes the rest."""

    layer_forwards: float = 0.0
    layer_forwards_planned: float = 0.0
    head_forwards: float = 0.0
    head_forwards_planned: float = 0.0
    masks_done: int = 0
    masks_planned: int = 0
    n_replicas: int = 0
    masks_elsewhere: int = 0
    elsewhere: str = ""  # who computes them
    computing_s: float = 0.0  # of all replicas, since the search began
    stage: int = 0  # of screening, 1-based; 0 where the round is not screened
    stages: int = 0
    tokens_written: int = 0  # by objectives that generate, since the search began
    loading: str = ""  # what is read before there is any replica

    @property
    def waiting(self) -> str:
        """What is waited for, for people: a model, or masks that another process computes; empty where nothing is."""
        if not self.masks_elsewhere:
            return self.loading
        whose = f": {self.elsewhere}" if self.elsewhere else ""
        return f"waiting for {count(self.masks_elsewhere, 'mask')} that another search is computing{whose}"

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens a second that all replicas together write; None where nothing is generated."""
        return self.tokens_written / self.computing_s * self.n_replicas if self.tokens_written else None
