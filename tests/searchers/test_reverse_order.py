"""Reverse order."""

import pytest

from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.searchers.reverse_order import ReverseOrderSearcher
from tests.searchers.toys import rounds_of


@pytest.mark.parametrize(
    ("protect", "deepest"), [([], (25, 26, 27, 28, 29, 30, 31)), ([0, -1, 27], (23, 24, 25, 26, 28, 29, 30))]
)
def test_the_deepest_free_layers_are_removed_by_one_evaluation(protect, deepest):
    mask, rounds = rounds_of(ReverseOrderSearcher(), Problem.create(32, 7, protect), lambda mask: 1.0)
    assert mask == Mask(deepest)
    assert rounds == [(mask,)]
