"""The lowest states of quadratic models: all three solvers against brute force."""

import math
from itertools import combinations, product

import numpy as np
import pytest

from raysearch.searchers import cbo
from raysearch.searchers.cbo import lowest_states
from raysearch.searchers.toolbox import ising
from raysearch.searchers.toolbox.ising import Ising, LowestStates, enumerate_lowest, prove_lowest, swap_lowest

NOTHING = LowestStates((), (), 0, math.inf)


def random_model(n, seed, forbid=0.0):
    rng = np.random.default_rng(seed)
    pairs = np.triu(rng.normal(size=(n, n)), 1)
    forbidden = np.triu(rng.random((n, n)) < forbid, 1)
    return Ising(rng.normal(size=n), pairs + pairs.T, forbidden | forbidden.T)


def brute_force(model, size, count):
    """The lowest states, by the definition of the energy, term by term."""
    scored = []
    for state in combinations(range(len(model.linear)), size):
        pairs = list(combinations(state, 2))
        if not any(model.forbidden[i, j] for i, j in pairs):
            scored.append((sum(model.linear[i] for i in state) + sum(model.pairs[i, j] for i, j in pairs), state))
    return sorted(scored)[:count]


SIZES = [(1, 1), (2, 1), (6, 1), (6, 5), (7, 7), (9, 2), (12, 5), (20, 3), (20, 6)]


SOLVERS = {  # the number of requested states, and the solver
    "enumerate": (20, enumerate_lowest),
    "swap": (20, lambda model, size, count: swap_lowest(model, size, count, np.random.default_rng(0))),
    "milp": (5, lambda model, size, count: prove_lowest(model, size, count, NOTHING, time_limit_s=60)),
}


@pytest.mark.parametrize("solver", SOLVERS)
def test_solvers_agree_with_brute_force(solver):
    count, solve = SOLVERS[solver]
    sizes = SIZES[:-2] if solver == "milp" else SIZES  # a proof of more takes seconds
    for (n, size), forbid in product(sizes, (0.0, 0.15)):
        model = random_model(n, seed=100 * n + size, forbid=forbid)
        expected = brute_force(model, size, count)
        lowest = solve(model, size, count)
        assert list(lowest.states) == [state for _, state in expected], (n, size, forbid)
        assert lowest.energies == pytest.approx([energy for energy, _ in expected])
        assert lowest.proven == (0 if solver == "swap" else len(expected))
        assert lowest.gap == (math.inf if solver == "swap" else 0)


def test_enumeration_in_many_chunks_is_the_same(monkeypatch):
    model = random_model(14, seed=1)
    whole = enumerate_lowest(model, 5, 20)
    monkeypatch.setattr(ising, "_CHUNK", 7)
    monkeypatch.setattr(ising, "_BLOCK", 5)
    assert enumerate_lowest(model, 5, 20) == whole


def test_large_problems_are_searched_and_then_proven(monkeypatch):
    model = random_model(12, seed=2)
    exact = enumerate_lowest(model, 4, 5)
    monkeypatch.setattr(cbo, "_ENUMERABLE", 10)
    assert lowest_states(model, 4, 5, np.random.default_rng(0), 60).states == exact.states


def test_at_the_time_limit_the_states_of_the_local_search_are_returned_with_the_gap():
    model = random_model(30, seed=3)
    candidates = swap_lowest(model, 10, 5, np.random.default_rng(0))
    lowest = prove_lowest(model, 10, 5, candidates, time_limit_s=0.3)
    assert lowest.proven == 0
    assert lowest.states == candidates.states
    assert lowest.gap > 0


def test_the_result_is_at_least_as_low_as_the_candidates():
    model = random_model(12, seed=4)
    best = enumerate_lowest(model, 4, 3)
    poor = LowestStates.of(model.sorted_states([(0, 1, 2, 3), (1, 2, 3, 4)]), proven=0)
    assert prove_lowest(model, 4, 3, poor, time_limit_s=60).states == best.states
    assert set(prove_lowest(model, 4, 3, poor, time_limit_s=0).states) == {(0, 1, 2, 3), (1, 2, 3, 4)}
