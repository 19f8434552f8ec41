"""The contract between a searcher and the rest of raysearch.

A searcher is a coroutine that reads like its paper's pseudocode. It yields a `Round` of masks, is sent the
round's `Scores`, and at the end returns the mask it found:

    def search(self, problem, rng):
        beams = [problem.dense]
        for _ in range(problem.n_remove):
            scores = yield Round(problem.children(beams))
            beams = scores.best(self.width)
        return beams[0]

It may also yield a `Statistic` of the dense model's layers, and is sent its array. It may yield a `Remark`, a value to
be recorded (a criterion's scores, a solver's gap), and is sent None.

The rules, each a test in `raysearch.testing.searcher_suite`:

- **Legal.** Every mask of a round is legal for the problem (`Problem.is_legal`). The returned mask removes exactly
  ``problem.n_remove`` layers and has been scored.
- **Deterministic.** Rounds depend on the problem, the answers and `rng` alone. This makes resume a replay: the ledger
  answers with the losses that it holds, and the searcher repeats its steps up to the point where it stopped.
- **Independent.** A searcher works with masks and random numbers. It uses no models, no Ray, no disks and no trackers.
- **Lower is better.** Scores are losses in the objective's unit. Ties are broken by mask order, or by its reverse, so
  no result depends on a hash.
- **Failure is data.** A mask that could not be evaluated has no loss, but the outcome `Failed` with its cause. A loss
  is always finite.

A worked call sequence, one layer of three to remove by `one_shot`:

    searcher                                     oracle (driven by `raysearch.searching.driver`)
    yield Round({0} {1} {2})          ─────►     evaluates the three masks
                                      ◄─────     Scores({0}: 4.0, {1}: 3.2, {2}: 3.5)
    yield Round({1})                  ─────►     answered by the ledger
                                      ◄─────     Scores({1}: 3.2)
    return {1}                        ─────►     checked: legal, one layer, scored
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np

from raysearch.core.mask import Mask
from raysearch.core.options import Options
from raysearch.core.problem import Problem
from raysearch.core.statistic import Statistic
from raysearch.errors import EvaluationError

Ties = Literal["earlier", "later"]  #: which of two masks of equal loss is better: that of earlier or of later layers


@dataclass(frozen=True)
class Round:
    """A set of masks proposed together.

    Args:
        masks: The masks to evaluate. They become a tuple in the same order, without repeats.
        keep: How many of the best masks need an exact loss; None for all, or for all that are better than `beat`.
            Screening may stop the evaluation of the other masks early; their outcome is then `Dropped`.
        beat: A mask that was scored before: only masks that are better than it need an exact loss. None for no such
            mask.
        n_rounds: The maximum number of rounds with `keep` or `beat` in the search; they share the error budget evenly.
        ties: Which of two masks of equal loss is better.
        exact: Whether every mask that is kept needs its loss. If not, screening may also stop the evaluation of masks
            that are certainly among the best, except the apparent best one; their outcome is then `Accepted`.
    """

    masks: Sequence[Mask]
    keep: int | None = None
    beat: Mask | None = None
    n_rounds: int = 1
    ties: Ties = "earlier"
    exact: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "masks", tuple(dict.fromkeys(self.masks)))


@dataclass(frozen=True)
class Loss:
    """A mask was evaluated in full.

    Args:
        value: Its loss, finite, in the objective's unit.

    Raises:
        ValueError: The value is not finite: such an evaluation has failed.
    """

    value: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise ValueError(f"a loss is {self.value}, which is not finite; use `Failed` with the cause instead")


@dataclass(frozen=True)
class Failed:
    """A mask could not be evaluated.

    Args:
        cause: The cause, as a clause.
    """

    cause: str


@dataclass(frozen=True)
class Dropped:
    """A mask is certainly not among the best of its round, so its evaluation stopped early.

    Args:
        estimate: An estimate of its loss; never compare it with losses.
    """

    estimate: float


@dataclass(frozen=True)
class Accepted:
    """A mask is certainly among the best of its round, so its evaluation stopped early (``Round(…, exact=False)``).

    Args:
        estimate: An estimate of its loss; never compare it with losses.
    """

    estimate: float


#: What became of a mask of a round.
Outcome = Loss | Failed | Dropped | Accepted


@dataclass(frozen=True)
class Scores:
    """The answer to a round.

    Args:
        round: The round.
        outcomes: The outcome of each of its masks.
    """

    round: Round
    outcomes: Mapping[Mask, Outcome]

    @cached_property
    def losses(self) -> Mapping[Mask, float]:
        """The loss of each mask that was evaluated in full, in the order of the round."""
        return {mask: outcome.value for mask, outcome in self.outcomes.items() if isinstance(outcome, Loss)}

    @cached_property
    def failed(self) -> Mapping[Mask, str]:
        """The cause for each mask that could not be evaluated."""
        return {mask: outcome.cause for mask, outcome in self.outcomes.items() if isinstance(outcome, Failed)}

    @cached_property
    def dropped(self) -> Mapping[Mask, float]:
        """The estimate of each mask that is certainly not among the best."""
        return {mask: outcome.estimate for mask, outcome in self.outcomes.items() if isinstance(outcome, Dropped)}

    @cached_property
    def accepted(self) -> Mapping[Mask, float]:
        """The estimate of each mask that is certainly among the best and has no loss."""
        return {mask: outcome.estimate for mask, outcome in self.outcomes.items() if isinstance(outcome, Accepted)}

    def __getitem__(self, mask: Mask) -> float:
        """Return the loss of a mask of the round.

        Raises:
            EvaluationError: The mask could not be evaluated.
            ValueError: The mask was dropped or accepted, so it has no loss.
        """
        match self.outcomes[mask]:
            case Loss(loss):
                return loss
            case Failed(cause):
                raise EvaluationError(f"{mask} could not be evaluated: {cause}")
            case Dropped() | Accepted():
                raise ValueError(f"the loss of {mask} is not known: its Round let it be dropped or accepted")

    def __contains__(self, mask: object) -> bool:
        return mask in self.losses

    def __or__(self, later: Scores) -> Scores:
        """Return the outcomes of both rounds as those of one round, which keeps all of its masks."""
        outcomes = {**self.outcomes, **later.outcomes}
        return Scores(Round([*outcomes]), outcomes)

    def best(self, count: int) -> list[Mask]:
        """Return the `count` masks of lowest loss, best first; ties in mask order, or in its reverse.

        Masks that were accepted without a loss follow the first one.

        Raises:
            EvaluationError: No mask of the round could be evaluated.
            ValueError: `count` is higher than the round's `keep`, so some of these masks may have been dropped; or
                `count` is neither 1 nor `keep`, and some masks were accepted without a loss.
        """
        keep = self.round.keep
        if self.dropped and keep is not None and count > keep:
            raise ValueError(f"the {count} best are not known: Round(…, keep={keep}) let others be dropped")
        if self.accepted and count not in (1, keep):
            raise ValueError(f"the {count} best are not known: Round(…, exact=False) let others be accepted")
        if not self.losses:
            cause = next(iter(self.failed.values()), "the round was empty")
            raise EvaluationError(f"no mask of the round could be evaluated: {cause}")
        in_order = sorted(self.losses, reverse=self.round.ties == "later")
        best, *worse = sorted(in_order, key=lambda mask: self.losses[mask])
        return [best, *sorted(self.accepted), *worse][:count]


@dataclass(frozen=True)
class Remark:
    """A value that a search records in addition to its masks; the last value of a name replaces the earlier ones.

    Args:
        name: The name of the value, such as ``block_influence`` or ``gap``.
        value: A number, a text, or one number for each layer.
    """

    name: str
    value: float | str | list[float]


#: `Round` is answered by `Scores`, `Statistic` by its array, `Remark` by None.
SearchGenerator = Generator[Round | Statistic | Remark, Any, Mask]


class Searcher(Options, ABC):
    """An algorithm that proposes rounds of masks and ends with one. Its options are its constructor's arguments.

    Attributes:
        nested: Whether the searcher also finds a mask for every number of layers below M. A range of numbers then takes
            one search.
        solves_additive: Whether the searcher finds the optimum if a mask costs the sum of its layers' costs; the
            conformance suite tests it.
    """

    section = "searcher"
    nested: ClassVar[bool] = False
    solves_additive: ClassVar[bool] = True

    @property
    def uses_objective(self) -> bool:
        """Whether the mask depends on the losses, or on a statistic of them.

        If not, the searcher is a baseline: it finds the same mask with every objective. Reports then leave it out when
        they compare calibrations.
        """
        return True

    @property
    def stochastic(self) -> bool:
        """Whether another seed may find another mask."""
        return False

    @property
    def open_ended(self) -> bool:
        """Whether the number of masks depends on the losses, so that a forecast can only be approximate."""
        return False

    @abstractmethod
    def search(self, problem: Problem, rng: np.random.Generator) -> SearchGenerator:
        """Start the search.

        Args:
            problem: The space of legal masks.
            rng: The only source of random numbers.

        Returns:
            A generator of rounds, statistics and remarks. It is sent the answers and returns the best mask.
        """

    def count(self, problem: Problem) -> int | None:
        """Return how many masks the search will score, or None if only a rehearsal can show that."""
        return None
