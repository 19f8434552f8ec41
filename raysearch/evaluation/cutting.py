"""Cuts a unit along its masks if there are more replicas than units, or too few units to keep all busy to the end.

In the order of the prefix walk a mask shares the most with the one before, so a cut makes its right part run again only
the layers that its first mask shares with that one: few near the left end, where masks drop early layers, and most of a
model near the right one, where the dense model is. So a unit is cut into even parts, and only from the left are small
ends cut off, for the replicas that are done first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from raysearch.core.mask import Mask
from raysearch.evaluation.unit import MaskUnit

#: What is cut off for the end of a round, as a share of what a replica gets of it, and in how many pieces.
_ENDS_SHARE, _ENDS = 0.2, 4


def cut(unit: MaskUnit, replicas: float, n_layers: int) -> tuple[list[MaskUnit], list[MaskUnit]]:
    """Cut a unit into even parts, and small ends off these, until each part is well below a replica's share.

    There are 1.5 `replicas` for the unit where three share two. Parts and ends together have every mask once.
    """
    masks = walk_order(unit.masks, n_layers)
    own = own_layers(masks, n_layers)
    share = sum(own) / max(1.0, replicas)
    parts, ends = [], []
    for start, stop in _even(own, int(replicas)):
        first = start
        while sum(own[first:stop]) > (1 - _ENDS_SHARE) * share:
            after = _end(own, first, stop, share * _ENDS_SHARE / _ENDS)
            if after is None:
                break
            ends.append(replace(unit, masks=masks[first:after]))
            first = after
        parts.append(replace(unit, masks=masks[first:stop]))
    return parts, ends


def walk_order(masks: Sequence[Mask], n_layers: int) -> tuple[Mask, ...]:
    """Sort masks as a walk of their trie finds them that skips a layer before it runs it: {0,1}, {0}, {1}, {}."""
    return tuple(sorted(masks, key=lambda mask: (*mask, n_layers)))


def own_layers(masks: Sequence[Mask], n_layers: int) -> list[int]:
    """Return what each of some masks in `walk_order` adds to those before it, in forwards of a layer or the head."""
    shared = [0, *(_shared_layers(before, mask, n_layers) for before, mask in pairwise(masks))]
    return [n_layers - len(mask) - layers + 1 for mask, layers in zip(masks, shared, strict=True)]


def _shared_layers(one: Mask, other: Mask, n_layers: int) -> int:
    """Count the layers that two masks run on the same states: those kept before the first that only one removes."""
    apart = min({*one} ^ {*other}, default=n_layers)
    return apart - sum(layer < apart for layer in one)


def _even(own: Sequence[int], n_parts: int) -> list[tuple[int, int]]:
    """Return neighbouring ranges of about the same sum, none of them empty."""
    n_parts = max(1, min(n_parts, len(own)))
    sums = list(accumulate(own))
    stops: list[int] = []
    for part in range(1, n_parts):
        wanted = sums[-1] * part / n_parts
        stop = min(range(len(own)), key=lambda index: abs(sums[index] - wanted)) + 1
        stops.append(min(max(stop, stops[-1] + 1 if stops else 1), len(own) - n_parts + part))
    return list(pairwise([0, *stops, len(own)]))


def _end(own: Sequence[int], start: int, stop: int, wanted: float) -> int | None:
    """Return where an end from `start` of about this cost stops; None if the cut would cost too much."""
    for after, done in enumerate(accumulate(own[start:stop]), start + 1):
        if done >= wanted:
            return after if after < stop and done <= 3 * wanted else None
    return None
