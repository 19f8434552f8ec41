"""The speed and memory of masks from measured summaries: of a mask itself, or added up over kinds of sites.

Layers of one kind take the same time and memory. So a mask that removes several layers of one kind tells what each of
them takes, and the time of any mask is the dense model's minus what its layers take. This holds for pairs and halves,
too. Summaries are those of
`raysearch.assessment.speed.SpeedJob`, or of a runtime that serves the model: it does not matter who measured them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from statistics import median
from typing import Any, NamedTuple

from raysearch.core.estimate import Estimate
from raysearch.core.mask import Mask
from raysearch.core.site import Sites
from raysearch.searching.recommendation import Speed
from raysearch.stats.estimates import error_of_median

#: The measured numbers of a mask, and of the dense model in turn with it as ``dense``: of each repeat ``decode_s`` and
#: ``latency_s``, in seconds, and ``peak_memory_bytes``, which is None if it is not known.
Summary = Mapping[str, Any]

#: The least share of the dense model's time or memory that a mask can have: measurements of tiny models are noise.
_LEAST_SHARE = 1e-3
_MEMORY = "peak_memory_bytes"


def masks_of_kinds(sites: Sites, removable: Collection[int], refused_sizes: Collection[int] = ()) -> list[Mask]:
    """Return the masks that are measured for the speeds of all others: half of the removable sites of each kind.

    Args:
        sites: The sites of a searcher.
        removable: The indices of the sites that masks may remove.
        refused_sizes: The numbers of sites that no mask may remove.

    Returns:
        A mask of these sites for each kind, of its last sites that do not overlap, at least one. Of a kind that has no
        number of sites that a mask may remove there is none.
    """
    masks = []
    for indices in sites.by_kind(sorted(removable)).values():
        last_first: list[int] = []
        for index in reversed(indices):
            if sites.overlaps[index].isdisjoint(last_first):
                last_first.append(index)
        half = math.ceil(len(last_first) / 2)
        possible = {*range(1, len(last_first) + 1)}.difference(refused_sizes)
        if possible:
            masks.append(Mask.of(*last_first[: min(possible, key=lambda size: abs(size - half))]))
    return masks


def speed_of(mask: Mask, sites: Sites, summaries: Mapping[Mask, Summary]) -> Speed | None:
    """Return the speed and the memory of a mask relative to the dense model.

    They are those of the mask itself, or of a mask with as many layers or halves of each kind, if one was measured.
    Otherwise what the mask's layers take is subtracted from the dense model's time and memory. If layers of one kind
    alone were not measured, it is what the mask's sites take: groups of layers, pairs or halves.

    Args:
        mask: The mask of the model, not empty.
        sites: The sites of the search.
        summaries: Measured numbers by mask of the model.

    Returns:
        The speed and the memory, which is None if it was not measured; None if sites of a kind were not measured.
    """
    parts = _parts(mask, sites, summaries)
    if parts is None:
        return None
    decoding, latency = (_share(parts, key) for key in ("decode_s", "latency_s"))
    memory = memory_bytes = None
    if all(None not in (part.summary[_MEMORY], part.summary["dense"][_MEMORY]) for part in parts):
        share = _share(parts, _MEMORY).value
        memory = share - 1
        memory_bytes = share * median(part.summary["dense"][_MEMORY] for part in parts)
    dense_s = list(chain.from_iterable(part.summary["dense"]["latency_s"] for part in parts))
    dense_ms = 1000 * median(dense_s)
    dense_error_s = error_of_median(dense_s)
    latency_error = None
    if dense_error_s is not None and latency.error is not None:
        latency_error = math.hypot(1000 * dense_error_s * latency.value, dense_ms * latency.error)
    return Speed(
        speedup=1 / decoding.value,
        error=None if decoding.error is None else decoding.error / decoding.value**2,
        memory=memory,
        memory_bytes=memory_bytes,
        latency_ms=dense_ms * latency.value,
        latency_error_ms=latency_error,
        dense_latency_ms=dense_ms,
        runtime=parts[0].summary.get("runtime"),
    )


class _Part(NamedTuple):
    """A measured mask, and how many times what it saves is saved."""

    summary: Summary
    factor: float


def _parts(mask: Mask, sites: Sites, summaries: Mapping[Mask, Summary]) -> list[_Part] | None:
    """Return the measured masks that add up to a mask; None if there are none."""
    if mask in summaries:
        return [_Part(summaries[mask], 1.0)]
    kinds = _kinds(mask, sites.layers)
    for measured, summary in summaries.items():
        if _kinds(measured, sites.layers) == kinds:
            return [_Part(summary, 1.0)]
    return _parts_by_kind(mask, sites.layers, summaries) or _parts_by_kind(mask, sites, summaries)


def _kinds(mask: Mask, layers: Sites) -> Counter[int]:
    """Return the numbers of removed halves by kind, or of removed layers if the halves of the model are not known."""
    if layers.parts:
        return Counter(layers.parts[half.position].kind for half in mask.all_halves)
    return Counter(layers[layer].kind for layer in mask)


def _parts_by_kind(mask: Mask, sites: Sites, summaries: Mapping[Mask, Summary]) -> list[_Part] | None:
    """Return the measured masks of one kind of sites that add up to a mask; None if there are none."""
    indices = sites.indices_of(mask)
    if indices is None:
        return None
    measured_indices = {
        measured: sites_of_mask for measured in summaries if (sites_of_mask := sites.indices_of(measured))
    }
    parts = []
    for kind, indices_of_kind in sites.by_kind(indices).items():
        of_kind = [measured for measured, others in measured_indices.items() if {*sites.by_kind(others)} == {kind}]
        if not of_kind:
            return None
        largest = max(of_kind, key=lambda measured: len(measured_indices[measured]))
        parts.append(_Part(summaries[largest], len(indices_of_kind) / len(measured_indices[largest])))
    return parts


def _share(parts: Sequence[_Part], key: str) -> Estimate:
    """Return a time or memory of a mask as a share of the dense model's, with its standard error."""
    shares = [_measured_share(part.summary, key) for part in parts]
    if [part.factor for part in parts] == [1.0]:
        return shares[0]
    saved = sum(part.factor * (1 - share.value) for part, share in zip(parts, shares, strict=True))
    errors = [share.error for share in shares if share.error is not None]
    error = None
    if len(errors) == len(parts):
        error = math.hypot(*(part.factor * error for part, error in zip(parts, errors, strict=True)))
    return Estimate(max(1 - saved, _LEAST_SHARE), error)


def _measured_share(summary: Summary, key: str) -> Estimate:
    """Return a time or memory of a measured mask as a share of the dense model's, with its standard error."""
    dense = summary["dense"][key]
    if not isinstance(dense, list):  # memory, which is measured once
        return Estimate(summary[key] / dense, 0.0)
    shares = [pruned_s / dense_s for pruned_s, dense_s in zip(summary[key], dense, strict=True)]
    return Estimate(median(summary[key]) / median(dense), error_of_median(shares))
