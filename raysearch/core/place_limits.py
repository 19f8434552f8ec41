"""What the runtimes of a target leave of the masks, as a plain value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PlaceLimits:
    """The limits of masks whose models a runtime runs as they are.

    Args:
        group: Layers can only be removed in groups of so many, aligned at layer 0. Layers after the last whole group
            stay.
        protected: The layers that must stay, besides those after the last whole group. A group with such a layer stays.
        reasons: A sentence for each limit, without a full stop.
        refused_depths: The numbers of layers that a pruned model must not have.
    """

    group: int = 1
    protected: frozenset[int] = frozenset()
    reasons: tuple[str, ...] = ()
    refused_depths: frozenset[int] = frozenset()
