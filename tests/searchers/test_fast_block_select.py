"""Fast-Block-Select: a search computed by hand, its evaluations, and its exchanges."""

import numpy as np
import pytest

from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.searchers.fast_block_select import FastBlockSelectSearcher, conflict_free, exchanges
from raysearch.testing.searcher_suite import additive_loss, rugged_loss
from tests.searchers.toys import cheapest, rounds_of, run_on

NAN = float("nan")
SIX = Problem.create(6, 2)
COSTS = [1.0, 2, 3, 4, 5, 6]  # of the single layers 0 … 5
LOSSES = {
    (0, 1): 50,  # the start
    # Its five cheapest exchanges. (0, 2) and (0, 3) both exchange layer 1, and (0, 2) is better; (1, 3) does not
    # conflict with it.
    **{(0, 2): 40, (0, 3): 45, (1, 2): 60, (0, 4): 60, (1, 3): 42},
    (2, 3): 70,  # both exchanges together: worse than either, but the search continues from it
    **{(2, 4): 30, (2, 5): 80, (3, 4): 65, (3, 5): 80, (4, 5): 80},  # the last one exchanges both layers
    (1, 4): 90,  # the only new mask around (2, 4)
    (0, 5): 95,
}


def trace(losses, **options):
    mask, oracle = run_on(
        FastBlockSelectSearcher(**options), SIX, [COSTS], loss=lambda mask: float(losses[mask.layers])
    )
    return mask.layers, [[mask.layers for mask in proposed.masks] for proposed in oracle.rounds]


def test_a_search_by_hand():
    layers, rounds = trace(LOSSES)
    assert rounds == [
        [(0, 1)],
        [(0, 2), (0, 3), (1, 2), (0, 4), (1, 3)],
        [(2, 3)],
        [(2, 4), (2, 5), (3, 4), (3, 5), (4, 5)],
        [(1, 4)],
    ]
    assert layers == (2, 4)


def test_the_best_mask_of_the_history_is_returned():
    layers, rounds = trace({**LOSSES, (0, 2): 20})
    assert rounds[-1] == [(1, 4)]
    assert layers == (0, 2)


def test_rounds_are_limited():
    layers, rounds = trace(LOSSES, rounds=1)
    assert rounds[-1] == [(2, 3)]
    assert layers == (0, 2)


def test_a_search_does_not_continue_from_a_combination_that_fails():
    layers, rounds = trace({**LOSSES, (2, 3): NAN})
    assert rounds[2:] == [[(2, 3)], [(0, 5), (2, 4), (2, 5)], [(1, 4), (3, 4), (4, 5)]]  # around (0, 2), then (2, 4)
    assert layers == (2, 4)


def test_a_search_continues_after_a_start_that_fails():
    layers, rounds = trace({**LOSSES, (0, 1): NAN, (0, 3): NAN})
    assert rounds[2] == [(2, 3)]
    assert layers == (2, 4)


def test_a_search_ends_when_a_mask_repeats():
    couples = {Mask.of(0, 1), Mask.of(2, 3), Mask.of(4, 5)}
    _, oracle = run_on(
        FastBlockSelectSearcher(rounds=10),
        Problem.create(8, 2),
        [[*COSTS, 50.0, 50.0]],
        loss=lambda mask: 9.0 if mask in couples or max(mask) > 5 else 5.0,
    )
    # From (2, 3) over (4, 5) back to (0, 1), which still has exchanges that were not tried.
    assert [len(proposed.masks) for proposed in oracle.rounds] == [1, 5, 1, 5, 5]
    assert oracle.rounds[-1].masks[:3] == (Mask.of(0, 5), Mask.of(1, 4), Mask.of(1, 5))


@pytest.mark.parametrize("prior", ["influence", "ablation"])
def test_evaluations_at_32_layers_remove_7(prior):
    problem = Problem.create(32, 7)
    for seed in range(5):
        loss = rugged_loss(problem, seed)
        mask, rounds = rounds_of(FastBlockSelectSearcher(prior=prior), problem, loss)
        if prior == "ablation":
            assert rounds.pop(0) == problem.singles
        scored = [mask for masks in rounds for mask in masks]
        assert len(scored) == len(set(scored)) <= 1 + 4 * (5 + 1)
        assert all(len(masks) in (1, 5) for masks in rounds)
        assert mask == min(scored, key=loss)


def test_an_additive_optimum_is_the_start():
    problem = Problem.create(32, 7, [0, -1])
    loss = additive_loss(problem, 0)
    mask, rounds = rounds_of(FastBlockSelectSearcher(), problem, loss)
    assert mask == rounds[0][0] == cheapest(problem, loss)
    assert [len(masks) for masks in rounds] == [1, 5]


def test_runs_of_equal_length_are_exchanged_and_protected_layers_separate_them():
    problem = Problem.create(8, 3, protect=[5])
    masks = exchanges(problem, Mask.of(0, 1, 3), np.array([0.0, 0, 9, 0, 1, 2, NAN]))
    singles = [{0, 1, 3} - {out} | {back} for out in (0, 1, 3) for back in (2, 4, 6, 7)]
    pairs = [{3, 6, 7}]  # no two of 2, 4, 6 are consecutive
    assert sorted(map(sorted, masks)) == sorted(map(sorted, [*singles, *pairs]))
    assert masks[:3] == [Mask.of(0, 1, 4), Mask.of(0, 3, 4), Mask.of(1, 3, 4)]
    assert masks[-4:] == sorted(mask for mask in masks if 7 in mask)  # unknown cost


def test_only_the_first_exchange_of_a_layer_is_made():
    centre = Mask.of(0, 1, 2)
    improving = [Mask.of(0, 1, 5), Mask.of(0, 1, 6), Mask.of(0, 2, 5), Mask.of(2, 7, 8), Mask.of(1, 2, 9)]
    problem = Problem.create(10, 3)
    assert conflict_free(problem, centre, improving) == Mask.of(5, 7, 8)
