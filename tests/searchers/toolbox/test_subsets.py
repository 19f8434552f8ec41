"""Masks of M layers: random ones, the cheapest one, and runs of layers."""

import numpy as np

from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.core.space import SPACES
from raysearch.searchers.toolbox.subsets import cheapest_mask, draw_mask, draw_masks, logits_of, runs, swaps


def test_cheap_layers_are_drawn_more_often_even_if_one_layer_is_ruinous():
    problem = Problem.create(10, 3)
    logits = logits_of(np.array([500.0, *(2.0 + 0.1 * layer for layer in range(1, 10))]), temperature=0.5)
    drawn = [draw_mask(problem, np.random.default_rng(seed), logits) for seed in range(400)]
    counts = [sum(layer in mask for mask in drawn) for layer in range(10)]
    assert counts[0] == 0
    assert counts[1] > counts[4] > counts[8]


def test_layers_of_unknown_cost_are_drawn_last():
    problem = Problem.create(6, 4)
    costs = np.array([np.nan, 1.0, 2.0, 3.0, np.nan, np.nan])
    assert cheapest_mask(problem, costs) == Mask.of(0, 1, 2, 3)
    assert {1, 2, 3} <= set(draw_mask(problem, np.random.default_rng(1), logits_of(costs, 0.5)))


def test_the_cheapest_layers_are_free_ones_and_ties_go_to_the_first():
    problem = Problem.create(6, 2, protect=[0, 3])
    assert cheapest_mask(problem, np.array([7.0, 5.0, 5.0, 5.0])) == Mask.of(2, 4)


def test_equal_costs_give_a_uniform_draw():
    problem = Problem.create(8, 3)
    mask = draw_mask(problem, np.random.default_rng(0), logits_of(np.full(8, 2.5), temperature=1.0))
    assert mask == draw_mask(problem, np.random.default_rng(0))


def test_masks_are_drawn_without_repetition_until_none_is_left():
    problem = Problem.create(5, 2)
    rng = np.random.default_rng(0)
    first = draw_masks(problem, rng, 4)
    assert len(set(first)) == 4
    second = draw_masks(problem, rng, 100, avoid=first)
    assert len(second) == 6
    assert not set(first) & set(second)


def test_runs_are_consecutive():
    expected: list[list[tuple[int, ...]]] = [
        [(2,), (3,), (4,), (6,), (8,), (9,)],
        [(2, 3), (3, 4), (8, 9)],
        [(2, 3, 4)],
        [],
    ]
    for length, windows in enumerate(expected, start=1):
        assert runs(Problem.create(12, 1), [4, 3, 2, 6, 9, 8], length) == [Mask(layers) for layers in windows]


def test_in_a_run_of_pairs_each_begins_where_the_last_one_ends():
    problem = Problem.create(4, 1, space=SPACES["pairs"])  # 0, 0m,1a, 1, 1m,2a, 2, 2m,3a, 3
    assert runs(problem, problem.free, 3) == [Mask.of(0, 2, 4), Mask.of(1, 3, 5), Mask.of(2, 4, 6)]


def test_layers_of_unknown_cost_are_drawn_uniformly_if_too_few_costs_are_known():
    problem = Problem.create(32, 7)
    costs = np.where(np.arange(32) < 8, 1.0, np.nan)
    drawn = draw_masks(problem, np.random.default_rng(0), 15, logits=logits_of(costs, temperature=1.0))
    assert len(set(drawn)) == 15


def test_swaps_are_all_masks_one_exchange_away():
    states = np.array([[1.0, 0, 1, 0, 0], [0, 0, 0, 1, 1]])
    for row, rows in zip(states, swaps(states), strict=True):
        assert len(rows) == len({tuple(swapped) for swapped in rows.tolist()}) == 2 * 3
        assert (rows.sum(axis=1) == 2).all()
        assert (np.abs(rows - row).sum(axis=1) == 2).all()
    assert swaps(np.ones((1, 3))).tolist() == [[[1, 1, 1]]]
