"""Speeds that add up over kinds of layers, from summaries that anything may have measured."""

from __future__ import annotations

import math
from typing import Any

import pytest

from raysearch.core.mask import Mask
from raysearch.core.site import Sites
from raysearch.searching.speeds import masks_of_kinds, speed_of
from raysearch.stats.estimates import error_of_median

#: Four layers with a window and two without, as kinds 0 and 1.
SITES = Sites.of_layers([1] * 6, kinds=[0, 0, 1, 0, 0, 1])
LAYER_S = {0: 0.1, 1: 0.2}
LAYER_BYTES = {0: 10, 1: 30}


def times(mask: Mask, noise: tuple[float, ...]) -> dict[str, Any]:
    """Return the numbers of a model whose embedding and head take 0.2 s and 40 bytes."""
    kept = [SITES[site].kind for site in SITES.kept_layers(mask)]
    seconds = 0.2 + sum(LAYER_S[kind] for kind in kept)
    return {
        "decode_s": [seconds * factor for factor in noise],
        "latency_s": [1.5 * seconds * factor for factor in noise],
        "peak_memory_bytes": 40 + sum(LAYER_BYTES[kind] for kind in kept),
    }


def summary(mask: Mask, noise: tuple[float, ...] = (1.0, 1.0, 1.0)) -> dict[str, Any]:
    return {**times(mask, noise), "dense": times(Mask(), (1.0,) * len(noise))}


def test_half_of_each_kind_is_measured() -> None:
    assert masks_of_kinds(SITES, range(6)) == [Mask.of(3, 4), Mask.of(5)]
    assert masks_of_kinds(SITES, [0, 1, 3]) == [Mask.of(1, 3)], "only kinds that masks may remove"


def test_times_and_memory_add_up() -> None:
    summaries = {mask: summary(mask) for mask in masks_of_kinds(SITES, range(6))}
    for mask in (Mask.of(0), Mask.of(2), Mask.of(0, 1, 2), Mask.of(0, 1, 2, 3, 4, 5)):
        speed = speed_of(mask, SITES, summaries)
        direct = times(mask, (1.0,))
        assert speed is not None
        assert speed.speedup == pytest.approx(1.0 / direct["decode_s"][0])
        assert speed.latency_ms == pytest.approx(1000 * direct["latency_s"][0])
        assert speed.memory_bytes == pytest.approx(direct["peak_memory_bytes"])
        assert speed.memory == pytest.approx(direct["peak_memory_bytes"] / 140 - 1)
        assert speed.error == pytest.approx(0), "every repeat took the same time"


def test_a_measured_mask_counts_itself() -> None:
    measured = summary(Mask.of(0, 2), (0.9, 1.0, 1.1))
    for mask in (Mask.of(0, 2), Mask.of(4, 5)):
        speed = speed_of(mask, SITES, {Mask.of(0, 2): measured})
        assert speed is not None
        assert speed.speedup == pytest.approx(1 / 0.7)
        assert speed.error == pytest.approx(error_of_median([0.63, 0.7, 0.77]) / 0.7**2)  # type: ignore[operator]


def test_errors_add_up_in_squares() -> None:
    noisy = {mask: summary(mask, (0.9, 1.0, 1.1)) for mask in masks_of_kinds(SITES, range(6))}
    speed = speed_of(Mask.of(0, 2), SITES, noisy)
    assert speed is not None
    share = 1 - 0.1 - 0.2
    of_kind = error_of_median([0.9 * 0.8, 0.8, 1.1 * 0.8])  # both masks take 0.8 of the dense model's time
    assert of_kind is not None
    assert speed.error == pytest.approx(math.hypot(of_kind / 2, of_kind) / share**2)
    once = {mask: summary(mask, (1.0,)) for mask in masks_of_kinds(SITES, range(6))}
    single = speed_of(Mask.of(0, 2), SITES, once)
    assert single is not None
    assert single.error is single.latency_error_ms is None, "one repeat has no error"


def test_a_kind_that_was_not_measured_is_not_known() -> None:
    assert speed_of(Mask.of(0, 2), SITES, {Mask.of(3, 4): summary(Mask.of(3, 4))}) is None
    assert speed_of(Mask.of(0), SITES, {}) is None


def test_groups_add_up_where_only_whole_groups_may_go() -> None:
    sites = Sites.of_layers([1] * 9, kinds=[0, 1, 0, 0, 0, 1, 0, 1, 0])
    groups = sites.in_groups(2)
    assert [group.kind for group in groups] == [0, 1, 0, 0, 2], "as many layers of each kind are one kind"
    measured = [groups.mask_of(mask) for mask in masks_of_kinds(groups, range(4))]
    assert measured == [Mask.of(4, 5, 6, 7), Mask.of(2, 3)]

    def of_groups(mask: Mask) -> dict[str, Any]:
        seconds = 2.0 - sum(LAYER_S[sites[layer].kind] for layer in mask)
        return {"decode_s": [seconds], "latency_s": [seconds], "peak_memory_bytes": None}

    summaries = {mask: {**of_groups(mask), "dense": of_groups(Mask())} for mask in measured}
    for mask in (Mask.of(0, 1), Mask.of(0, 1, 2, 3)):
        speed = speed_of(mask, groups, summaries)
        assert speed is not None
        assert speed.speedup == pytest.approx(2.0 / of_groups(mask)["decode_s"][0])
        assert speed.memory is speed.memory_bytes is None, "it was not measured"
    assert speed_of(Mask.of(0, 1), sites, summaries) is None, "a layer of kind 1 alone was not measured"


def test_no_mask_of_a_refused_size_is_measured() -> None:
    assert masks_of_kinds(SITES, range(6), refused_sizes=[2]) == [Mask.of(4), Mask.of(5)]
    assert masks_of_kinds(SITES, range(6), refused_sizes=[1, 2]) == [Mask.of(1, 3, 4)], "none of the other kind"
