"""The driver of searchers: breaking the contract is an error of the searcher."""

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.searchers.base import Round, Searcher
from raysearch.searching.driver import ContractError, run_searcher
from raysearch.testing.searcher_suite import ToyOracle, additive_loss
from tests.sentences import Sentences


@pytest.mark.parametrize(
    ("proposed", "returned"),
    [(0, 0), (1, 2)],
)
def test_breaking_the_contract_is_the_searchers_fault(proposed, returned, sentences: Sentences):
    class Rogue(Searcher):
        def search(self, problem, rng):
            yield Round([Mask.of(proposed)])
            return Mask.of(returned)

    problem = Problem.create(4, 1, protect=[0])
    with sentences.refused(ContractError):
        run_searcher(Rogue(), problem, 0, ToyOracle(problem, additive_loss(problem, 0)))


def test_a_searcher_that_forgets_to_yield_is_an_error(sentences: Sentences):
    class Hasty(Searcher):
        def search(self, problem, rng):
            return Mask.of(1)

    problem = Problem.create(4, 1)
    with sentences.refused(ContractError):
        run_searcher(Hasty(), problem, 0, ToyOracle(problem, additive_loss(problem, 0)))


def test_a_searcher_computes_in_one_thread() -> None:
    seen: list[list[int]] = []

    def look() -> None:
        seen.append([library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"])

    class Looking(Searcher):
        def search(self, problem, rng):
            look()
            yield Round([Mask.of(1)])
            look()
            return Mask.of(1)

    problem = Problem.create(4, 1)
    with threadpool_limits(2, "blas"):
        run_searcher(Looking(), problem, 0, ToyOracle(problem, additive_loss(problem, 0)))
        look()
    first, second, after = map(set, seen)
    assert first == second == {1}
    assert after == {2}
