"""Constrained binary optimisation: what it costs, what it is exact on, and what failed pairs forbid."""

from itertools import combinations

import pytest

from raysearch.errors import EvaluationError, UserError
from raysearch.mask import Mask
from raysearch.problem import Problem
from raysearch.searchers.cbo import CboSearcher, pair_model
from raysearch.testing.searcher_suite import rugged_loss, toy_scores
from tests.searchers.toys import rounds_of


def test_evaluations_at_32_layers_remove_7():
    problem = Problem.create(32, 7)
    _, rounds = rounds_of(CboSearcher(), problem, rugged_loss(problem, 0))
    assert [len(masks) for masks in rounds] == [1 + 528, 20]
    assert rounds[0][0] == problem.dense


def test_one_layer_needs_no_pairs():
    problem = Problem.create(12, 1)
    found, rounds = rounds_of(CboSearcher(k=3), problem, rugged_loss(problem, 0))
    assert [len(masks) for masks in rounds] == [13, 3]
    assert found == min(problem.singles, key=rugged_loss(problem, 0))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("protect", [[], [0, -1]])
def test_a_pairwise_loss_is_solved_exactly(seed, protect):
    problem = Problem.create(16, 5, protect)
    loss = rugged_loss(problem, seed)
    shifted = lambda mask: 2.5 + loss(mask)  # noqa: E731 - the dense loss is not 0
    found, rounds = rounds_of(CboSearcher(k=20), problem, shifted, seed)
    ranked = sorted((Mask(layers) for layers in combinations(problem.free, 5)), key=loss)
    assert list(rounds[1]) == ranked[:20]
    assert found == ranked[0]


def test_the_best_of_the_low_states_is_returned_not_the_lowest():
    problem = Problem.create(8, 3)
    loss = rugged_loss(problem, 0)
    ranked = sorted((Mask(layers) for layers in combinations(problem.free, 3)), key=loss)
    found, _ = rounds_of(CboSearcher(k=4), problem, lambda mask: loss(mask) - 100 * (mask == ranked[3]))
    assert found == ranked[3]


def test_failed_pairs_are_not_removed_together():
    problem = Problem.create(12, 4)
    loss = rugged_loss(problem, 1)
    best = min((Mask(layers) for layers in combinations(problem.free, 4)), key=loss)
    broken = Mask.of(*best.layers[:2])
    found, rounds = rounds_of(CboSearcher(), problem, lambda mask: float("nan") if mask == broken else loss(mask))
    assert not any(broken.issubset(mask) for mask in rounds[1])
    legal = [Mask(layers) for layers in combinations(problem.free, 4) if not broken.issubset(Mask(layers))]
    assert found == min(legal, key=loss)


def test_the_model_is_the_loss_of_singles_and_pairs():
    problem = Problem.create(6, 3, protect=[2])
    loss = rugged_loss(problem, 2)
    singles_and_pairs = [problem.dense, *problem.singles, *map(Mask, combinations(problem.free, 2))]
    losses = {mask: 1.0 + loss(mask) for mask in singles_and_pairs}
    layers, model = pair_model(problem, toy_scores(type("R", (), {"masks": losses})(), losses.__getitem__))
    assert layers == [0, 1, 3, 4, 5]
    for i, j in combinations(range(5), 2):
        energy = model.linear[i] + model.linear[j] + model.pairs[i, j]
        assert energy == pytest.approx(loss(Mask.of(layers[i], layers[j])))


@pytest.mark.parametrize(
    ("fails", "message"),
    [
        (lambda mask: len(mask) == 0, "the dense model could not be evaluated: the loss is nan"),
        (lambda mask: len(mask) == 1, "only 0 of 6 layers could be ablated, too few to remove 3: the loss is nan"),
        (lambda mask: len(mask) == 2, "no mask of 3 layers is left: too many pairs .*the loss is nan"),
        (lambda mask: len(mask) == 3, "no mask of the round could be evaluated: the loss is nan"),
    ],
)
def test_a_search_that_cannot_go_on_says_why(fails, message):
    problem = Problem.create(6, 3)
    with pytest.raises(EvaluationError, match=message):
        rounds_of(CboSearcher(), problem, lambda mask: float("nan") if fails(mask) else 1.0)


def test_options_are_checked():
    with pytest.raises(UserError, match="searcher.k=0 scores no mask; use 1 or more"):
        CboSearcher(k=0)
    with pytest.raises(UserError, match="searcher.time_limit_s=0.0 leaves no time to solve"):
        CboSearcher(time_limit_s=0.0)
