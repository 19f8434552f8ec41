"""The contract between a searcher and the rest of raysearch.

A searcher is a coroutine that reads like its paper's pseudocode. It yields a `Round` of masks, is sent the
round's `Scores`, and at the end returns the mask it found:

    def search(self, problem, rng):
        beams = [problem.dense]
        for _ in range(problem.n_remove):
            scores = yield Round(problem.children(beams))
            beams = scores.best(self.width)
        return beams[0]

The rules, each a test in `raysearch.testing.searcher_suite`:

- **Legal.** Every mask of a round is legal for the problem (`Problem.is_legal`); so is the one returned, which removes
  exactly ``problem.n_remove`` layers and has been scored.
- **Deterministic.** Rounds depend on the problem, the scores and `rng` alone. That is what makes resume a replay: on
  the same command the ledger answers what is known, and the searcher walks the same way to where it stopped.
- **Blind.** A searcher knows masks and random numbers, nothing of models, Ray, disks or trackers.
- **Lower is better.** Scores are losses in nats. Ties are broken by mask order, so no result depends on a hash.
- **Failure is data.** A mask whose evaluation failed is in ``scores.failed`` with its cause and has no loss; a NaN
  never reaches a searcher.

A worked call sequence, one layer of three to remove by `one_shot`:

    searcher                                     driver (`run_searcher`)
    yield Round({0} {1} {2})          ─────►     evaluates the three masks
                                      ◄─────     Scores({0}: 4.0, {1}: 3.2, {2}: 3.5)
    yield Round({1})                  ─────►     answered by the ledger
                                      ◄─────     Scores({1}: 3.2)
    return {1}                        ─────►     checked: legal, one layer, scored
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from raysearch.errors import EvaluationError
from raysearch.mask import Mask
from raysearch.problem import Problem


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


class ContractError(Exception):
    """A searcher broke the contract: a bug in the searcher, not in the user's input."""


SearchGenerator = Generator[Round, Scores, Mask]


class Searcher(Protocol):
    """An algorithm that proposes rounds of masks and ends with one. Its options are its constructor's arguments."""

    def search(self, problem: Problem, rng: np.random.Generator) -> SearchGenerator:
        """Starts the search.

        Args:
            problem: The space of legal masks.
            rng: The only source of random numbers.

        Returns:
            A generator of rounds that is sent scores and returns the mask found.
        """
        ...


def run_searcher(searcher: Searcher, problem: Problem, seed: int, evaluate: Callable[[Round], Scores]) -> Mask:
    """Drives a searcher to its end and holds it to the contract.

    Args:
        searcher: The algorithm.
        problem: The space of legal masks.
        seed: Seeds the searcher's random numbers.
        evaluate: Answers a round.

    Returns:
        The mask found.

    Raises:
        ContractError: The searcher yielded an illegal mask, or returned one that is illegal or has no score.
    """
    name = type(searcher).__name__
    scored: set[Mask] = set()
    generator = searcher.search(problem, np.random.default_rng(seed))
    try:
        proposed = next(generator)
        while True:
            for mask in proposed.masks:
                if not problem.is_legal(mask):
                    raise ContractError(f"{name} proposed {mask}, which is not legal for {problem}")
            scores = evaluate(proposed)
            scored.update(scores.losses)
            proposed = generator.send(scores)
    except StopIteration as stop:
        found = stop.value
    if not isinstance(found, Mask) or not problem.is_solution(found):
        raise ContractError(f"{name} returned {found}, which does not remove {problem.n_remove} legal layers")
    if found not in scored:
        raise ContractError(f"{name} returned {found} without a score for it")
    return found
