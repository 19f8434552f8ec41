"""Genetic search: what it costs, its operators, and what the prior does."""

import numpy as np
import pytest

from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.searchers.genetic import GeneticSearcher, cross, mutate, select
from raysearch.testing.searcher_suite import additive_loss, rugged_loss
from tests.searchers.toys import rounds_of

PROBLEM = Problem.create(32, 7)


def test_no_mask_is_asked_for_twice():
    for seed, kind in enumerate((additive_loss, rugged_loss, rugged_loss)):
        _, rounds = rounds_of(GeneticSearcher(), PROBLEM, kind(PROBLEM, seed), seed)
        solutions = [mask for masks in rounds[1:] for mask in masks]
        assert len(set(solutions)) == len(solutions) == 146, "not the elite either"


@pytest.mark.parametrize("prior", ["influence", "none"])
def test_without_the_ablation_prior_there_are_no_ablations(prior):
    _, rounds = rounds_of(GeneticSearcher(prior=prior), PROBLEM, additive_loss(PROBLEM, 0))
    assert [len(masks) for masks in rounds] == [16, *[13] * 10]  # 146


@pytest.mark.parametrize("prior", ["ablation", "influence"])
def test_the_cheapest_layers_are_a_founder(prior):
    loss = additive_loss(PROBLEM, 3)
    _, rounds = rounds_of(GeneticSearcher(prior=prior), PROBLEM, loss)
    assert rounds[-11][0] == Mask.of(*sorted(range(32), key=lambda layer: loss(Mask.of(layer)))[:7])


def test_the_best_mask_ever_scored_is_returned():
    loss = rugged_loss(PROBLEM, 5)
    found, rounds = rounds_of(GeneticSearcher(elitism=0.0), PROBLEM, loss)
    assert found == min((mask for masks in rounds[1:] for mask in masks), key=loss)


def test_a_small_space_is_bred_empty():
    problem = Problem.create(6, 3)
    found, rounds = rounds_of(GeneticSearcher(prior="none", generations=50), problem, rugged_loss(problem, 1))
    asked = [mask for masks in rounds for mask in masks]
    assert len(asked) == len(set(asked)) == problem.n_solutions
    assert found == min(asked, key=rugged_loss(problem, 1))


def test_children_inherit_what_their_parents_share_and_nothing_else():
    rng = np.random.default_rng(0)
    mother, father = Mask.of(1, 2, 3, 4, 5, 6, 7), Mask.of(4, 5, 6, 7, 8, 9, 10)
    for _ in range(50):
        child = cross(PROBLEM, rng, mother, father)
        assert len(child) == 7
        assert (mother & father).issubset(child)
        assert child.issubset(mother | father)
    assert cross(PROBLEM, rng, mother, mother) == mother


def test_mutation_swaps_one_layer_and_spares_protected_ones():
    problem = Problem.create(8, 3, protect=[0, -1])
    rng = np.random.default_rng(0)
    mask = Mask.of(1, 2, 3)
    mutants = {mutate(problem, rng, mask) for _ in range(200)}
    assert mutants == {mask - [out] | [back] for out in mask for back in (4, 5, 6)}


def test_selection_prefers_the_front():
    rng = np.random.default_rng(0)
    population = [Mask.of(layer) for layer in range(10)]
    ranks = [population.index(select(population, rng)) for _ in range(2000)]
    assert np.mean(ranks) == pytest.approx(2.025, abs=0.2)  # the least of three uniform ranks
