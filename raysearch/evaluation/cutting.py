"""Cuts a unit along its masks if there are more replicas than units, or too few units to keep all busy to the end.

In the order of the prefix walk a mask shares the most with the one before, so a cut makes its right part run again only
the layers that its first mask shares with that one: few near the left end, where masks drop early layers, and most of a
model near the right one, where the dense model is. So small ends are cut off from the left alone, for the replicas that
are done first. The rest is cut into parts that take about as long as each other, with what they run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from raysearch.core.mask import Mask
from raysearch.evaluation.unit import MaskUnit

#: What is cut off for the end of a round, as a share of what a replica gets of it, and in how many pieces.
_ENDS_SHARE, _ENDS = 0.2, 4
_HALVINGS = 20  # of the range in which the largest part is looked for


def cut(
    unit: MaskUnit, replicas: float, n_layers: int, head_cost: float = 1.0
) -> tuple[list[MaskUnit], list[MaskUnit]]:
    """Cut small ends off a unit, and the rest into even parts, until each part is well below a replica's share.

    Args:
        unit: The unit.
        replicas: How many replicas there are for it: 1.5 where three share two units.
        n_layers: N, the layers of the dense model.
        head_cost: What a mask takes beside its layers, in runs of a layer.

    Returns:
        The parts, the largest first, and the ends. Together they have every mask once.
    """
    costs = _Costs.of(walk_order(unit.masks, n_layers), n_layers, head_cost)
    n_parts, n_masks = max(1, int(replicas)), len(costs.masks)
    share = costs.of_range(0, n_masks) / max(1.0, replicas)
    ends, first = [], 0
    while costs.of_range(first, n_masks) > (1 - _ENDS_SHARE) * share * n_parts:
        after = _end(costs, first, share * _ENDS_SHARE / _ENDS)
        if after is None:
            break
        ends.append((first, after))
        first = after
    parts = sorted(_even(costs, first, n_parts), key=lambda part: -costs.of_range(*part))
    pieces = [[replace(unit, masks=costs.masks[start:stop]) for start, stop in ranges] for ranges in (parts, ends)]
    return pieces[0], pieces[1]


def walk_order(masks: Sequence[Mask], n_layers: int) -> tuple[Mask, ...]:
    """Sort masks as a walk of their trie finds them that skips a layer before it runs it: {0,1}, {0}, {1}, {}."""
    return tuple(sorted(masks, key=lambda mask: (*mask, n_layers)))


def own_layers(masks: Sequence[Mask], n_layers: int) -> list[int]:
    """Return how many layers each of some masks in `walk_order` runs that the one before does not share with it."""
    shared = [0, *(_shared_layers(before, mask, n_layers) for before, mask in pairwise(masks))]
    return [n_layers - len(mask) - layers for mask, layers in zip(masks, shared, strict=True)]


def _shared_layers(one: Mask, other: Mask, n_layers: int) -> int:
    """Count the layers that two masks run on the same states: those kept before the first that only one removes."""
    apart = min({*one} ^ {*other}, default=n_layers)
    return apart - sum(layer < apart for layer in one)


@dataclass(frozen=True)
class _Costs:
    """What masks in `walk_order` cost, in forwards of a layer."""

    masks: tuple[Mask, ...]
    alone: Sequence[float]  #: of each, by itself
    sums: Sequence[float]  #: of what the masks before each add to those before them, and of all

    @classmethod
    def of(cls, masks: tuple[Mask, ...], n_layers: int, head_cost: float) -> _Costs:
        """Return the costs, with the head's."""
        own = own_layers(masks, n_layers)
        sums = accumulate((layers + head_cost for layers in own), initial=0.0)
        return cls(masks, [n_layers - len(mask) + head_cost for mask in masks], [*sums])

    def of_range(self, start: int, stop: int) -> float:
        """Return what neighbours cost together: the first by itself, and what the others add."""
        return self.alone[start] + self.sums[stop] - self.sums[start + 1]

    def run_again(self, index: int) -> float:
        """Return what a cut before a mask adds: what that mask shares with the one before it."""
        return self.alone[index] - (self.sums[index + 1] - self.sums[index])


def _even(costs: _Costs, start: int, n_parts: int) -> list[tuple[int, int]]:
    """Return neighbouring ranges from `start`, at most so many, of which the largest is as small as can be."""
    most = costs.of_range(start, len(costs.masks))
    least = max(costs.alone[start:])
    ranges = [(start, len(costs.masks))]
    for _ in range(_HALVINGS):
        limit = (least + most) / 2
        smaller = _filled(costs, start, limit)
        if len(smaller) > n_parts:
            least = limit
        else:
            ranges, most = smaller, limit
    return ranges


def _filled(costs: _Costs, start: int, limit: float) -> list[tuple[int, int]]:
    """Return neighbouring ranges from `start`, each as long as the limit of its cost allows."""
    starts = [start]
    for index in range(start + 1, len(costs.masks)):
        if costs.of_range(starts[-1], index + 1) > limit:
            starts.append(index)
    return list(pairwise([*starts, len(costs.masks)]))


def _end(costs: _Costs, start: int, wanted: float) -> int | None:
    """Return where an end from `start` of about this cost stops, such that little is run again; None without one."""
    possible = range(start + 1, len(costs.masks))
    stops = [stop for stop in possible if wanted <= costs.of_range(start, stop) <= 2 * wanted]
    if not stops and costs.alone[start] <= 3 * wanted:
        stops = [*possible[:1]]  # a mask is the smallest end
    return min(stops, key=costs.run_again, default=None)
