"""Cut units contain every mask once, cost little more than whole units, and have sizes that fill a round."""

from itertools import product

import numpy as np
import pytest

from raysearch.core.mask import Mask
from raysearch.core.site import Sites
from raysearch.evaluation.cutting import cut, own_costs, walk_order
from raysearch.evaluation.prefix import plan_prefixes
from raysearch.evaluation.unit import MaskUnit

N = 32
SITES = Sites.of_equal_layers(N)
SINGLES = [Mask(), *(Mask.of(layer) for layer in range(N))]
PAIRS = [*SINGLES, *(Mask.of(first, second) for first in range(N) for second in range(first))]


def random_masks(seed):
    """Random masks of all sizes, some of them similar, and the sites of the model."""
    rng = np.random.default_rng(seed)
    n_layers = int(rng.integers(1, 13))
    masks = [Mask.of(*np.flatnonzero(rng.random(n_layers) < rng.random()).tolist()) for _ in range(rng.integers(1, 40))]
    return tuple(sorted({mask for mask in masks if len(mask) < n_layers} | {Mask()})), Sites.of_equal_layers(n_layers)


def random_masks_with_halves(seed):
    """Random masks of halves and of layers, some of them similar, and the sites of the model."""
    rng = np.random.default_rng(seed)
    n_layers = int(rng.integers(1, 9))
    positions = [np.flatnonzero(rng.random(2 * n_layers) < rng.random()).tolist() for _ in range(rng.integers(1, 40))]
    sites = Sites.of_layers([4] * n_layers, attention_parameters=[1] * n_layers)
    halves = [half for site in sites for half in site.halves]
    masks = {Mask.of_halves(halves[position] for position in removed) for removed in positions}
    return tuple(sorted({mask for mask in masks if len(mask.layers) < n_layers} | {Mask()})), sites


def cost(masks, sites=SITES, head_cost=1.0):
    plan = plan_prefixes(masks, sites)
    return plan.layer_forwards + head_cost * len(plan.masks)


def test_own_costs_add_up_to_the_plan():
    for seed, draw in product(range(50), (random_masks, random_masks_with_halves)):
        masks, sites = draw(seed)
        masks = walk_order(masks, sites)
        costs_of_masks = own_costs(masks, sites)
        assert len(costs_of_masks) == len(masks)
        for stop in range(1, len(masks) + 1):
            assert sum(costs_of_masks[:stop]) == cost(masks[:stop], sites, head_cost=0), (
                "the cost of a cut at the left is exact"
            )


def test_every_mask_once():
    for seed, replicas, draw in product(range(50), (0.1, 1, 1.94, 3, 100), (random_masks, random_masks_with_halves)):
        masks, sites = draw(seed)
        parts, ends = cut(MaskUnit("a", 3, masks), replicas, sites)
        pieces = [*parts, *ends]
        assert sorted(mask for piece in pieces for mask in piece.masks) == list(masks)
        assert all(piece.masks and (piece.calibration, piece.shard) == ("a", 3) for piece in pieces)
        assert 1 <= len(parts) <= max(1, int(replicas))


def test_a_mask_cannot_be_cut():
    unit = MaskUnit("a", 0, (Mask.of(1),))
    assert cut(unit, 8, SITES) == ([unit], [])


@pytest.mark.parametrize("replicas", [1, 1.5, 2, 4, 8])
def test_no_part_is_more_than_most_of_a_share(replicas):
    masks = tuple(sorted(PAIRS))
    parts, ends = cut(MaskUnit("a", 0, masks), replicas, SITES)
    share = cost(masks) / replicas
    assert max(cost(part.masks) for part in parts) < 0.85 * share
    assert max(cost(end.masks) for end in ends) < 0.15 * share, "small units fill the rest of the round"
    assert sum(cost(piece.masks) for piece in [*parts, *ends]) < 1.09 * cost(masks)


@pytest.mark.parametrize("head_cost", [0.0, 2.4, 8.0])
@pytest.mark.parametrize("n_parts", [4, 7, 16])
def test_parts_cost_about_the_same_with_the_head_and_repeated_layers(n_parts, head_cost):
    parts, ends = cut(MaskUnit("a", 0, tuple(sorted(SINGLES))), n_parts, SITES, head_cost)
    costs = [cost(part.masks, head_cost=head_cost) for part in parts]
    assert not ends, "a mask is larger than an end"
    assert costs == sorted(costs, reverse=True)
    least = cost([Mask.of(0)], head_cost=head_cost)
    assert max(costs) - sum(costs) / n_parts < least / 2, "cuts are between masks"


def test_ends_come_from_where_they_are_cheap():
    parts, ends = cut(MaskUnit("a", 0, tuple(sorted(SINGLES))), 1, SITES)
    assert [end.masks for end in ends] == [(Mask.of(0),), (Mask.of(1),), (Mask.of(2),), (Mask.of(3),)]
    assert sum(cost(piece.masks) for piece in [*parts, *ends]) == cost(SINGLES) + 1 + 2 + 3
