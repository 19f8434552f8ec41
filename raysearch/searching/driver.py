"""Drives a searcher: an oracle answers its requests, and these are checked against `raysearch.searchers.base`.

`run_searcher` drives a search to its end, and `run_rounds` round by round. With `check_requests`, the caller answers.

A searcher has masks of the problem's sites. Here its requests, the answers and its result have masks of the model:
`check_requests` translates, unless the sites are the layers.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.core.statistic import Statistic
from raysearch.searchers.base import Remark, Round, Scores, Searcher, SearchGenerator
from raysearch.searching.model_masks import in_model

_Result = TypeVar("_Result")


class ContractError(Exception):
    """A searcher broke the contract: an error of the searcher, not of the user's input."""


class Oracle(Protocol):
    """Answers a searcher: a real search, a rehearsal of one, or a toy."""

    def evaluate(self, proposed: Round) -> Scores:
        """Return the losses of a round's masks."""

    def measure(self, statistic: Statistic) -> NDArray[np.float64]:
        """Return a statistic of the dense model, in the shape that `Statistic` gives.

        Raises:
            EvaluationError: It could not be computed, or is not finite.
        """

    def note(self, remark: Remark) -> None:
        """Record a remark."""


def check_requests(searcher: Searcher, problem: Problem, seed: int) -> SearchGenerator:
    """Start a search whose requests and result are checked; the caller answers each request.

    Args:
        searcher: The searcher.
        problem: The space of legal masks.
        seed: The seed of the searcher's random numbers.

    Returns:
        A generator that yields the searcher's requests, receives the answers, and returns its mask.

    Raises:
        ContractError: The searcher does not yield, yields an illegal mask, or returns a mask that is illegal or has no
            score.
    """
    requests = _checked(searcher, problem, seed)
    return requests if problem.sites.are_layers else in_model(requests, problem.sites)


def _checked(searcher: Searcher, problem: Problem, seed: int) -> SearchGenerator:
    """Start a search whose requests and result are checked, with masks of the problem's sites."""
    name = type(searcher).__name__
    scored: set[Mask] = set()
    generator = searcher.search(problem, np.random.default_rng(seed))
    if not isinstance(generator, Generator):
        raise ContractError(f"{name}.search returned {generator!r}; it must yield rounds, then return a mask")
    answer: Any = None
    libraries = _libraries(len(sys.modules))
    try:
        while True:
            # Its matrices are small. Several threads take twenty times as long if replicas work on the same cores.
            with libraries.limit(limits=1, user_api="blas"):
                request = generator.send(answer)
            match request:
                case Round():
                    for mask in request.masks:
                        if not problem.is_legal(mask):
                            raise ContractError(f"{name} proposed {mask}, which is not legal for {problem}")
                    answer = yield request
                    scored.update(answer.losses)
                case Statistic() | Remark():
                    answer = yield request
                case _:
                    raise ContractError(f"{name} yielded {request!r}, which is not a Round, Statistic or Remark")
    except StopIteration as stop:
        mask = stop.value
    if not isinstance(mask, Mask) or not problem.is_solution(mask):
        raise ContractError(f"{name} returned {mask}, which does not remove {problem.n_remove} legal {problem.plural}")
    if mask not in scored:
        raise ContractError(f"{name} returned {mask} without a score for it")
    return mask


@lru_cache(maxsize=1)
def _libraries(n_modules: int) -> ThreadpoolController:
    """Return the loaded numerical libraries. They are searched for again, which is slow, after an import."""
    return ThreadpoolController()


def run_rounds(searcher: Searcher, problem: Problem, seed: int, oracle: Oracle) -> Generator[None, None, Mask]:
    """Run a search round by round.

    Args:
        searcher: The searcher.
        problem: The space of legal masks.
        seed: The seed of the searcher's random numbers.
        oracle: Answers the requests of the searcher.

    Yields:
        None after each round.

    Returns:
        The mask of the searcher.

    Raises:
        ContractError: The searcher breaks the contract (`check_requests`).
    """
    generator = check_requests(searcher, problem, seed)
    answer: Any = None
    try:
        while True:
            match request := generator.send(answer):
                case Round():
                    answer = oracle.evaluate(request)
                    yield
                case Statistic():
                    answer = oracle.measure(request)
                case Remark():
                    oracle.note(request)
                    answer = None
    except StopIteration as stop:
        mask: Mask = stop.value
        return mask
    finally:
        generator.close()  # some optimizers of Nevergrad run in a thread, which must end


def run_searcher(searcher: Searcher, problem: Problem, seed: int, oracle: Oracle) -> Mask:
    """Run a search to its end, and return its mask.

    Args:
        searcher: The searcher.
        problem: The space of legal masks.
        seed: The seed of the searcher's random numbers.
        oracle: Answers the requests of the searcher.

    Returns:
        The mask that the searcher returned.

    Raises:
        ContractError: The searcher breaks the contract (`check_requests`).
    """
    return exhaust(run_rounds(searcher, problem, seed, oracle))


def exhaust(steps: Generator[Any, None, _Result]) -> _Result:
    """Run a generator to its end and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: _Result = stop.value
            return result
