"""The contract between a searcher and the rest of raysearch.

A searcher is a coroutine that reads like its paper's pseudocode. It yields a `Round` of masks, is sent the
round's `Scores`, and at the end returns the mask it found:

    def search(self, problem, rng):
        beams = [problem.dense]
        for _ in range(problem.n_remove):
            scores = yield Round(problem.children(beams))
            beams = scores.best(self.width)
        return beams[0]

Beside rounds it may yield a `Statistic`, to be sent what the dense model's layers look like, and a `Remark`, which goes
on the record (a criterion's scores, a solver's gap) and is answered by None.

The rules, each a test in `raysearch.testing.searcher_suite`:

- **Legal.** Every mask of a round is legal for the problem (`Problem.is_legal`); so is the one returned, which removes
  exactly ``problem.n_remove`` layers and has been scored.
- **Deterministic.** Rounds depend on the problem, the answers and `rng` alone. That is what makes resume a replay: on
  the same command the ledger answers what is known, and the searcher walks the same way to where it stopped.
- **Blind.** A searcher knows masks and random numbers, nothing of models, Ray, disks or trackers.
- **Lower is better.** Scores are losses in nats. Ties are broken by mask order, so no result depends on a hash.
- **Failure is data.** A mask whose evaluation failed is in ``scores.failed`` with its cause and has no loss; a NaN
  never reaches a searcher.

A worked call sequence, one layer of three to remove by `one_shot`:

    searcher                                     oracle (driven by `run_searcher`)
    yield Round({0} {1} {2})          ─────►     evaluates the three masks
                                      ◄─────     Scores({0}: 4.0, {1}: 3.2, {2}: 3.5)
    yield Round({1})                  ─────►     answered by the ledger
                                      ◄─────     Scores({1}: 3.2)
    return {1}                        ─────►     checked: legal, one layer, scored
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.core.statistic import Statistic
from raysearch.errors import EvaluationError

_Found = TypeVar("_Found")


@dataclass(frozen=True)
class Round:
    """A set of masks proposed together.

    Args:
        masks: The masks to evaluate. Repeats are dropped; the order is kept.
        keep: How many of the best the searcher needs to know exactly; None for all. Screening may stop
            the evaluation of the others early; they are then absent from the scores.
    """

    masks: tuple[Mask, ...]
    keep: int | None = None

    def __init__(self, masks: Iterable[Mask], keep: int | None = None) -> None:
        object.__setattr__(self, "masks", tuple(dict.fromkeys(masks)))
        object.__setattr__(self, "keep", keep)


@dataclass(frozen=True)
class Scores:
    """The answer to a round.

    Args:
        losses: Loss in nats for each mask evaluated in full.
        failed: The cause for each mask whose evaluation failed.
    """

    losses: Mapping[Mask, float]
    failed: Mapping[Mask, str] = field(default_factory=dict)

    def __getitem__(self, mask: Mask) -> float:
        """The loss of a mask, in nats."""
        return self.losses[mask]

    def best(self, count: int) -> list[Mask]:
        """The `count` masks of lowest loss, best first; ties in mask order.

        Raises:
            EvaluationError: No mask of the round could be evaluated.
        """
        if not self.losses:
            cause = next(iter(self.failed.values()), "the round was empty")
            raise EvaluationError(f"no mask of the round could be evaluated: {cause}")
        return sorted(self.losses, key=lambda mask: (self.losses[mask], mask))[:count]


@dataclass(frozen=True)
class Remark:
    """What a searcher wants on the record beside its masks; the last one of a name stands.

    Args:
        name: What it is, as in ``block_influence`` or ``gap``.
        value: A number, a text, or one number for each layer.
    """

    name: str
    value: float | str | list[float]


class ContractError(Exception):
    """A searcher broke the contract: a bug in the searcher, not in the user's input."""


#: `Round` is answered by `Scores`, `Statistic` by its array, `Remark` by None.
SearchGenerator = Generator[Round | Statistic | Remark, Any, Mask]


class Oracle(Protocol):
    """Who answers a searcher: a real search, a rehearsal of one, or a toy."""

    def evaluate(self, proposed: Round) -> Scores:
        """What the masks of a round lose."""
        ...

    def measure(self, statistic: Statistic) -> NDArray[np.float64]:
        """A statistic of the dense model, of the shape that `Statistic` states.

        Raises:
            EvaluationError: It could not be computed, or is not finite.
        """
        ...

    def note(self, remark: Remark) -> None:
        """Puts a remark on the record."""
        ...


class Searcher(Protocol):
    """An algorithm that proposes rounds of masks and ends with one. Its options are its constructor's arguments.

    One that finds the mask of every smaller number of layers on its way to M says ``nested: ClassVar[bool] = True``; a
    range of numbers then takes one run of it. One that may ask for too many masks to be rehearsed has a method
    ``count(problem)`` that says how many.
    """

    def search(self, problem: Problem, rng: np.random.Generator) -> SearchGenerator:
        """Starts the search.

        Args:
            problem: The space of legal masks.
            rng: The only source of random numbers.

        Returns:
            A generator of rounds (and statistics, and remarks) that is sent the answers and returns the mask found.
        """
        ...


def supervise(searcher: Searcher, problem: Problem, seed: int) -> SearchGenerator:
    """A searcher's coroutine, held to the contract, for whoever answers it one request at a time.

    Args:
        searcher: The algorithm.
        problem: The space of legal masks.
        seed: Seeds the searcher's random numbers.

    Returns:
        The searcher's generator, whose requests and result are checked on their way.

    Raises:
        ContractError: The searcher yielded an illegal mask, or returned one that is illegal or has no score.
    """
    name = type(searcher).__name__
    scored: set[Mask] = set()
    generator = searcher.search(problem, np.random.default_rng(seed))
    answer: Any = None
    try:
        while True:
            match request := generator.send(answer):
                case Round():
                    for mask in request.masks:
                        if not problem.is_legal(mask):
                            raise ContractError(f"{name} proposed {mask}, which is not legal for {problem}")
                    answer = yield request
                    scored.update(answer.losses)
                case Statistic() | Remark():
                    answer = yield request
                case _:
                    raise ContractError(f"{name} yielded {request!r}, which is no Round, Statistic or Remark")
    except StopIteration as stop:
        found = stop.value
    if not isinstance(found, Mask) or not problem.is_solution(found):
        raise ContractError(f"{name} returned {found}, which does not remove {problem.n_remove} legal layers")
    if found not in scored:
        raise ContractError(f"{name} returned {found} without a score for it")
    return found


def run_rounds(searcher: Searcher, problem: Problem, seed: int, oracle: Oracle) -> Generator[None, None, Mask]:
    """Drives a searcher round by round and holds it to the contract.

    Args:
        searcher: The algorithm.
        problem: The space of legal masks.
        seed: Seeds the searcher's random numbers.
        oracle: Answers it.

    Yields:
        After each round that was answered.

    Returns:
        The mask found.

    Raises:
        ContractError: As `supervise`.
    """
    generator = supervise(searcher, problem, seed)
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
    """Drives a searcher to its end: `run_rounds`, and what that returns."""
    return exhaust(run_rounds(searcher, problem, seed, oracle))


def exhaust(steps: Generator[Any, None, _Found]) -> _Found:
    """Runs a generator to its end, for what it returns."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            found: _Found = stop.value
            return found
