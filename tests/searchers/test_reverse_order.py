"""Reverse order."""

import pytest

from raysearch.errors import EvaluationError
from raysearch.mask import Mask
from raysearch.problem import Problem
from raysearch.searchers.base import Scores, run_searcher
from raysearch.searchers.reverse_order import ReverseOrderSearcher


@pytest.mark.parametrize(
    ("protect", "deepest"), [([], (25, 26, 27, 28, 29, 30, 31)), ([0, -1, 27], (23, 24, 25, 26, 28, 29, 30))]
)
def test_the_deepest_free_layers_go_at_the_cost_of_one_evaluation(protect, deepest):
    rounds = []

    def evaluate(proposed):
        rounds.append(proposed.masks)
        return Scores(dict.fromkeys(proposed.masks, 1.0))

    found = run_searcher(ReverseOrderSearcher(), Problem.create(32, 7, protect), 0, evaluate)
    assert found == Mask(deepest)
    assert rounds == [(found,)]


def test_a_failure_is_reported():
    with pytest.raises(EvaluationError, match="out of memory"):
        run_searcher(
            ReverseOrderSearcher(),
            Problem.create(4, 1),
            0,
            lambda p: Scores({}, dict.fromkeys(p.masks, "out of memory")),
        )
