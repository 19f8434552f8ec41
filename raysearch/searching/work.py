"""What a search took: evaluations, layer-forwards, tokens and time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class EvaluationCounts:
    """The numbers of evaluations of a search.

    Args:
        requested: Requested by the searcher.
        computed: Computed by this process.
        cached: Found in the ledger.
        screened: Dropped or accepted by screening before they were complete.
    """

    requested: int
    computed: int
    cached: int
    screened: int = 0

    def plus(self, other: EvaluationCounts) -> EvaluationCounts:
        """Return the sum of these numbers and others."""
        return EvaluationCounts(
            self.requested + other.requested,
            self.computed + other.computed,
            self.cached + other.cached,
            self.screened + other.screened,
        )


@dataclass(frozen=True)
class LayerForwards:
    """The cost of a search, in passes of one layer over the whole calibration.

    Args:
        computed: The layer-forwards of this process.
        alone: The layer-forwards of the whole search with an empty ledger.
        naive: The layer-forwards of a full forward for each requested mask.
        naive_computed: The layer-forwards of a full forward for each mask that this process computed.
    """

    computed: float
    alone: float
    naive: float
    naive_computed: float = 0.0

    @property
    def whole(self) -> float:
        """All work of the search: `computed`, or `alone` if a part of it was in the ledger."""
        # `computed` may be larger, since replicas that share a round run some layers twice.
        return max(self.computed, self.alone)

    def plus(self, other: LayerForwards) -> LayerForwards:
        """Return the sum of this cost and another."""
        return LayerForwards(
            self.computed + other.computed,
            self.alone + other.alone,
            self.naive + other.naive,
            self.naive_computed + other.naive_computed,
        )


@dataclass(frozen=True)
class LayerTokens:
    """The number of tokens that layers computed, once per layer.

    Args:
        computed: The tokens, with padding.
        by_row: The tokens without padding, if each choice had a row.
        packed: Whether choices shared their prompt; None if there are no choices, or nothing was computed.
    """

    computed: int
    by_row: int
    packed: bool | None

    def plus(self, other: LayerTokens) -> LayerTokens:
        """Return the sum of these numbers and others."""
        packed = other.packed if self.packed is None else self.packed
        return LayerTokens(self.computed + other.computed, self.by_row + other.by_row, packed)


@dataclass(frozen=True, kw_only=True)
class SearchWork:
    """The work of the process that ran a search to its end.

    Args:
        evaluations: The numbers of evaluations.
        layer_forwards: The cost of the search.
        layer_tokens: The number of tokens that layers computed.
        seconds: The wall-clock time of this process.
        searcher_seconds: The part of `seconds` that the searcher took between an answer and its next request.
        busy_share: The share of the replicas' time in which they computed, 0 … 1.
        pool: The use of each replica, the number of repeated units, and the seconds without a replica.
        ended: The time of the end, in seconds since the epoch.
    """

    evaluations: EvaluationCounts
    layer_forwards: LayerForwards
    layer_tokens: LayerTokens
    seconds: float
    searcher_seconds: float
    busy_share: float
    pool: Mapping[str, Any] = field(default_factory=dict)
    ended: float = 0.0

    @property
    def began(self) -> float:
        """When this process began the search, in seconds since the epoch."""
        return self.ended - self.seconds

    @property
    def from_ledger(self) -> SearchWork:
        """The work of a process that finds all of it in the ledger."""
        evaluations = self.evaluations
        return replace(
            self,
            evaluations=replace(evaluations, computed=0, cached=evaluations.requested),
            layer_forwards=replace(
                self.layer_forwards, computed=0.0, alone=self.layer_forwards.whole, naive_computed=0.0
            ),
            layer_tokens=LayerTokens(0, 0, None),
        )

    def plus(self, other: SearchWork) -> SearchWork:
        """Return this work with the evaluations and the cost of another; the times and the replicas stay."""
        return replace(
            self,
            evaluations=self.evaluations.plus(other.evaluations),
            layer_forwards=self.layer_forwards.plus(other.layer_forwards),
            layer_tokens=self.layer_tokens.plus(other.layer_tokens),
        )
