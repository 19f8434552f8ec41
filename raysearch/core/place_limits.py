"""The limits that the rules of place of a search's target set to the masks.

A runtime may derive a property of a layer from its place: every fourth layer attends to all tokens. If a mask removes
whole groups of such a period, every kept layer has the same place in its group, and so the same properties.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from raysearch.core.mask import Half


@dataclass(frozen=True)
class PlaceLimits:
    """The layers that the runtimes of a target allow to remove.

    Args:
        group: Layers can only be removed in groups of so many, aligned at layer 0; the layers after the last whole
            group stay.
        protected: The layers that must stay, besides those after the last whole group. A group with such a layer stays.
        reasons: A sentence for each limit, with the name and the version of the runtime, without a full stop.
        refused_depths: The numbers of layers that a pruned model must not have.
        protected_halves: The halves that must stay, besides those of these layers.
    """

    group: int = 1
    protected: frozenset[int] = frozenset()
    reasons: tuple[str, ...] = ()
    refused_depths: frozenset[int] = frozenset()
    protected_halves: frozenset[Half] = frozenset()

    def __or__(self, other: PlaceLimits) -> PlaceLimits:
        """Return the limits of masks that keep to both."""
        return PlaceLimits(
            group=math.lcm(self.group, other.group),
            protected=self.protected | other.protected,
            reasons=tuple(dict.fromkeys((*self.reasons, *other.reasons))),
            refused_depths=self.refused_depths | other.refused_depths,
            protected_halves=self.protected_halves | other.protected_halves,
        )
