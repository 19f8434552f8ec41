"""Drives a searcher: an oracle answers its requests, and both are checked against `raysearch.searchers.base`.

`run_searcher` drives a search to its end, `run_rounds` round by round; `check_requests` leaves the answering to others.
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

_Result = TypeVar("_Result")


class ContractError(Exception):
    """A searcher broke the contract: a bug in the searcher, not in the user's input."""


class Oracle(Protocol):
    """Answers a searcher: a real search, a rehearsal of one, or a toy."""

    def evaluate(self, proposed: Round) -> Scores:
        """Return the losses of a round's masks."""

    def measure(self, statistic: Statistic) -> NDArray[np.float64]:
        """Return a statistic of the dense model, in the shape that `Statistic` states.

        Raises:
            EvaluationError: It could not be computed, or is not finite.
        """

    def note(self, remark: Remark) -> None:
        """Put a remark on the record."""


def check_requests(searcher: Searcher, problem: Problem, seed: int) -> SearchGenerator:
    """Start a search whose requests and result are checked; the caller answers each request.

    Raises:
        ContractError: The searcher yields nothing or an illegal mask, or returned one that is illegal or has no score.
    """
    name = type(searcher).__name__
    scored: set[Mask] = set()
    generator = searcher.search(problem, np.random.default_rng(seed))
    if not isinstance(generator, Generator):
        raise ContractError(f"{name}.search returned {generator!r}; it must yield rounds, then return a mask")
    answer: Any = None
    libraries = _libraries(len(sys.modules))
    try:
        while True:
            # Its matrices are small: several threads take twenty times as long where replicas work on the same cores.
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
        found = stop.value
    if not isinstance(found, Mask) or not problem.is_solution(found):
        raise ContractError(f"{name} returned {found}, which does not remove {problem.n_remove} legal layers")
    if found not in scored:
        raise ContractError(f"{name} returned {found} without a score for it")
    return found


@lru_cache(maxsize=1)
def _libraries(n_modules: int) -> ThreadpoolController:
    """Return the numerical libraries; they are looked for again, in a list of all files in memory, after an import."""
    return ThreadpoolController()


def run_rounds(searcher: Searcher, problem: Problem, seed: int, oracle: Oracle) -> Generator[None, None, Mask]:
    """Run a search as `check_requests` by an oracle, yielding after each round, and return the mask found."""
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
        found: Mask = stop.value
        return found
    finally:
        generator.close()  # some of Nevergrad's optimizers run in a thread, which ends with them


def run_searcher(searcher: Searcher, problem: Problem, seed: int, oracle: Oracle) -> Mask:
    """Run a search to its end and return the mask found; see `run_rounds`."""
    return exhaust(run_rounds(searcher, problem, seed, oracle))


def exhaust(steps: Generator[Any, None, _Result]) -> _Result:
    """Run a generator to its end and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: _Result = stop.value
            return result
