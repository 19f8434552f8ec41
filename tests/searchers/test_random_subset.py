"""Random subsets."""

from collections import Counter

import pytest

from raysearch.core.problem import Problem
from raysearch.searchers.random_subset import RandomSubsetSearcher
from raysearch.testing.searcher_suite import additive_loss
from tests.searchers.toys import rounds_of


def masks_of(searcher, problem, seed=0):
    mask, (masks,) = rounds_of(searcher, problem, additive_loss(problem, 0), seed)
    assert mask == min(masks, key=additive_loss(problem, 0))
    return masks


@pytest.mark.parametrize("k", [1, 20, 500])
def test_k_masks_are_drawn_without_repetition(k):
    assert len(set(masks_of(RandomSubsetSearcher(k=k), Problem.create(32, 7)))) == k


def test_draws_are_seeded_and_even():
    problem = Problem.create(8, 2)
    assert masks_of(RandomSubsetSearcher(), problem, 1) == masks_of(RandomSubsetSearcher(), problem, 1)
    assert masks_of(RandomSubsetSearcher(), problem, 1) != masks_of(RandomSubsetSearcher(), problem, 2)
    counts = Counter(masks_of(RandomSubsetSearcher(k=1), problem, seed)[0] for seed in range(700))
    assert len(counts) == 28
    assert max(counts.values()) < 50
    assert min(counts.values()) > 8  # 25 each, with a standard deviation of 5
