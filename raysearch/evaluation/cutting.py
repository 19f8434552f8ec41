"""Cuts a unit along its masks if there are too few units to keep all replicas busy to the end of a round.

In the order of the prefix walk, a mask shares the most layers with the mask before it. So after a cut, the right part
runs again only the layers that its first mask shares with the mask before the cut. These are few at the left end, where
masks drop early layers, and most of the model at the right end, where the dense model is. So small ends are cut off at
the left only, for the replicas that finish first. The rest is cut into parts of about equal cost, which includes the
layers that they run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from raysearch.core.mask import Mask
from raysearch.core.site import Sites
from raysearch.evaluation.unit import MaskUnit

_ENDS_SHARE = 0.2  # the part of a replica's work that is cut off for the end of the round
_ENDS = 4  # how many ends that part is cut into
_HALVINGS = 20  # steps of the bisection that looks for the smallest largest part


def cut(unit: MaskUnit, replicas: float, sites: Sites, head_cost: float = 1.0) -> tuple[list[MaskUnit], list[MaskUnit]]:
    """Cut small ends off a unit, and cut the rest into even parts, each well below the share of a replica.

    Args:
        unit: The unit.
        replicas: How many replicas share the unit: 1.5 if three replicas share two units.
        sites: The layers of the dense model, with their halves if a mask has halves.
        head_cost: The cost of a mask in addition to its layers, in layer-forwards.

    Returns:
        The parts, the largest first, and the ends. Together they contain every mask once.
    """
    costs = _Costs.of(walk_order(unit.masks, sites), sites, head_cost)
    n_parts = max(1, int(replicas))
    n_masks = len(costs.masks)
    share = costs.of_range(0, n_masks) / max(1.0, replicas)
    ends = []
    first = 0
    while costs.of_range(first, n_masks) > (1 - _ENDS_SHARE) * share * n_parts:
        after = _end(costs, first, share * _ENDS_SHARE / _ENDS)
        if after is None:
            break
        ends.append((first, after))
        first = after
    parts = sorted(_even_ranges(costs, first, n_parts), key=lambda part: -costs.of_range(*part))

    def units(ranges: Sequence[tuple[int, int]]) -> list[MaskUnit]:
        return [replace(unit, masks=costs.masks[start:stop]) for start, stop in ranges]

    return units(parts), units(ends)


def walk_order(masks: Sequence[Mask], sites: Sites) -> tuple[Mask, ...]:
    """Sort masks in the order of a walk of their trie that skips what it can before it runs it: {0,1}, {0}, {1}, {}.

    Args:
        masks: The masks.
        sites: The layers of the dense model, with their halves if a mask has halves.

    Returns:
        The masks, sorted.
    """
    n_halves = 2 * sites.n_layers
    return tuple(sorted(masks, key=lambda mask: (*(half.position for half in mask.all_halves), n_halves)))


def own_costs(masks: Sequence[Mask], sites: Sites) -> list[float]:
    """Return the cost of what each mask runs and does not share with the mask before it, in layer-forwards.

    Args:
        masks: Masks in `walk_order`.
        sites: The layers of the dense model, with their halves if a mask has halves.

    Returns:
        The cost of each mask, in layer-forwards of one shard.
    """
    shared_costs = [0, *(_shared_cost(before, mask, sites) for before, mask in pairwise(masks))]
    return [sites.remaining_cost(mask) - shared for mask, shared in zip(masks, shared_costs, strict=True)]


def _shared_cost(mask: Mask, other_mask: Mask, sites: Sites) -> float:
    """Return the cost of what two masks run on the same states: before the first layer that they run differently."""
    differences = {*mask.all_halves} ^ {*other_mask.all_halves}
    first_difference = min((half.layer for half in differences), default=sites.n_layers)
    return sum(sites.run_cost(run) for run in sites.runs(mask) if run.layer < first_difference)


@dataclass(frozen=True)
class _Costs:
    """The costs of masks in `walk_order`, in layer-forwards."""

    masks: tuple[Mask, ...]
    single_costs: Sequence[float]  #: the cost of each mask by itself
    sums: Sequence[float]  #: the cost of the first k masks together, for k from 0 to all

    @classmethod
    def of(cls, masks: tuple[Mask, ...], sites: Sites, head_cost: float) -> _Costs:
        """Return the costs of masks, with the cost of the head."""
        single_costs = [sites.remaining_cost(mask) + head_cost for mask in masks]
        added_costs = [cost + head_cost for cost in own_costs(masks, sites)]
        return cls(masks, single_costs, list(accumulate(added_costs, initial=0.0)))

    def of_range(self, start: int, stop: int) -> float:
        """Return the cost of neighbours together: that of the first by itself, and what each next mask adds."""
        return self.single_costs[start] + self.sums[stop] - self.sums[start + 1]

    def run_again(self, index: int) -> float:
        """Return the cost that a cut before a mask adds: the layers that the mask shares with the mask before it."""
        return self.single_costs[index] - (self.sums[index + 1] - self.sums[index])


def _even_ranges(costs: _Costs, start: int, n_parts: int) -> list[tuple[int, int]]:
    """Return at most `n_parts` neighbouring ranges from `start`, such that the largest cost is as small as possible."""
    most = costs.of_range(start, len(costs.masks))
    least = max(costs.single_costs[start:])
    ranges = [(start, len(costs.masks))]
    for _ in range(_HALVINGS):
        limit = (least + most) / 2
        smaller = _filled_ranges(costs, start, limit)
        if len(smaller) > n_parts:
            least = limit
        else:
            ranges = smaller
            most = limit
    return ranges


def _filled_ranges(costs: _Costs, start: int, limit: float) -> list[tuple[int, int]]:
    """Return neighbouring ranges from `start`, each as long as the limit of its cost allows."""
    starts = [start]
    for index in range(start + 1, len(costs.masks)):
        if costs.of_range(starts[-1], index + 1) > limit:
            starts.append(index)
    return list(pairwise([*starts, len(costs.masks)]))


def _end(costs: _Costs, start: int, cost: float) -> int | None:
    """Return where an end from `start` of about this cost stops, such that little is run again; None if none fits."""
    possible = range(start + 1, len(costs.masks))
    stops = [stop for stop in possible if cost <= costs.of_range(start, stop) <= 2 * cost]
    if not stops and costs.single_costs[start] <= 3 * cost:
        stops = list(possible[:1])  # a mask is the smallest end
    return min(stops, key=costs.run_again, default=None)
