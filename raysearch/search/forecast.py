"""The cost of a search, forecast before it runs.

A searcher is a deterministic function of the scores it is sent, and what it costs hardly depends on them; so it is run
once against made-up additive scores, and the prefix plans of its rounds are kept. No model is involved.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from raysearch.calibration.objectives.base import Objective
from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.core.statistic import Statistic
from raysearch.evaluation.costs import check_statistic, passes
from raysearch.evaluation.prefix import naive_layer_forwards
from raysearch.search.driver import Oracle, run_searcher
from raysearch.searchers.base import Remark, Round, Scores, Searcher


@dataclass(frozen=True)
class RoundCost:
    """The cost of a round on an empty ledger. Forwards are passes over the whole calibration.

    Args:
        masks: Masks the searcher asks for.
        layer_forwards: Layers that the prefix plan runs.
        head_forwards: Times the final norm and head run.
        naive_layer_forwards: Layers that one full forward per mask would run.
        estimated: Whether only the number of masks is sure.
        screened: Whether screening may leave a part of this out.
        optional: Whether a search by budget may end before this round.
    """

    masks: int
    layer_forwards: int
    head_forwards: int
    naive_layer_forwards: int
    estimated: bool = False
    screened: bool = False
    optional: bool = False


@dataclass(frozen=True)
class SearchForecast:
    """The cost of a search on an empty ledger.

    Args:
        rounds: Of each round; None where that cannot be known.
        trainings: Masks that are recovered after the rounds.
        training_steps: Steps of each recovery.
    """

    rounds: list[RoundCost] | None
    trainings: int = 0
    training_steps: int = 0


def forecast(
    searcher: Searcher, problem: Problem, seed: int, objectives: Sequence[Objective], timeout_s: float = 2.0
) -> list[RoundCost] | None:
    """Return what a search would cost on an empty ledger; see `Forecaster`."""
    return Forecaster(timeout_s).forecast(searcher, problem, seed, objectives)


class Forecaster:
    """Forecasts many searches, and rehearses those that ask for the same masks once: whatever these are evaluated on.

    Args:
        timeout_s: How long a rehearsal may take, in seconds of processor time: a busy machine forecasts the same.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        # What each search asked for; None at the end if it took too long.
        self._asked: list[tuple[tuple[Searcher, Problem, int], list[Round | Statistic | None]]] = []

    def forecast(
        self,
        searcher: Searcher,
        problem: Problem,
        seed: int,
        objectives: Sequence[Objective],
        known: set[Mask | Statistic] | None = None,
    ) -> list[RoundCost] | None:
        """Rehearse a search against made-up scores, which are the same for every search.

        Args:
            searcher: The algorithm.
            problem: The space of legal masks.
            seed: Seeds the searcher.
            objectives: What is computed; several are taken to have as many samples each.
            known: What the ledger is taken to know, to which what this search asks for is added; None for nothing.

        Returns:
            The expected cost of each round. If the rehearsal takes too long, the rounds it did not come to are taken to
            be like the others, where the searcher can `count` its masks; else None.

        Raises:
            UserError: The searcher asks for gradients that the objectives do not have.
        """
        known = set() if known is None else known
        rehearsal = _Rehearsal(problem, objectives, known, time.process_time() + self._timeout_s)
        search = searcher, problem, seed
        asked = next((asked for other, asked in self._asked if other == search), None)
        try:
            if asked is None:
                run_searcher(searcher, problem, seed, rehearsal)
                self._asked.append((search, rehearsal.asked))
            else:
                rehearsal.repeat(asked)
        except _TooSlow:
            if asked is None:
                self._asked.append((search, [*rehearsal.asked, None]))
            count = searcher.count(problem)
            return None if count is None else rehearsal.rounds + rehearsal.rest(count)
        return rehearsal.rounds


class _Rehearsal(Oracle):
    """Answers with made-up numbers, and counts what real ones would cost."""

    def __init__(
        self, problem: Problem, objectives: Sequence[Objective], known: set[Mask | Statistic], deadline: float
    ) -> None:
        self.asked: list[Round | Statistic | None] = []
        self.rounds: list[RoundCost] = []
        self._problem, self._objectives, self._deadline = problem, objectives, deadline
        self._layer_costs = np.random.default_rng(0).random(problem.n_layers)
        self._known = known
        self._surveyed = self._surveyed_naively = 0  # layer-forwards of statistics since the last round

    @override
    def evaluate(self, proposed: Round) -> Scores:
        self._count_round(proposed)
        return Scores({mask: float(self._layer_costs[list(mask)].sum()) for mask in proposed.masks})

    @override
    def measure(self, statistic: Statistic) -> NDArray[np.float64]:
        """Return the same numbers for every statistic, or ones."""
        self._count_statistic(statistic)
        shape = statistic.shape(self._problem.n_layers)
        return np.broadcast_to(self._layer_costs, (1, *shape)) if len(shape) == 1 else np.ones((1, *shape))

    @override
    def note(self, remark: Remark) -> None:
        """Do nothing; made-up scores are worth no remark."""

    def repeat(self, asked: Sequence[Round | Statistic | None]) -> None:
        """Count what was asked for in another rehearsal of the same search."""
        for request in asked:
            if request is None:
                raise _TooSlow
            elif isinstance(request, Round):
                self._count_round(request)
            else:
                self._count_statistic(request)

    def _count_round(self, proposed: Round) -> None:
        if time.process_time() > self._deadline:
            raise _TooSlow
        n_layers = self._problem.n_layers
        masks = [mask for mask in proposed.masks if mask]  # the dense model is not counted
        new = [mask for mask in proposed.masks if mask not in self._known]
        costs = [passes(objective, new, n_layers) for objective in self._objectives]
        layers, heads = (round(sum(cost) / len(costs)) for cost in zip(*costs, strict=True))
        naive = naive_layer_forwards(masks, n_layers) + self._surveyed_naively
        self.rounds.append(RoundCost(len(masks), layers + self._surveyed, heads, naive))
        self._known.update(proposed.masks)
        self._surveyed = self._surveyed_naively = 0
        self.asked.append(proposed)

    def _count_statistic(self, statistic: Statistic) -> None:
        """Add what a statistic runs to the round after it."""
        check_statistic(statistic, self._objectives)
        cost = statistic.passes * self._problem.n_layers
        self._surveyed_naively += cost
        self._surveyed += 0 if statistic in self._known else cost
        self._known.add(statistic)
        self.asked.append(statistic)

    def rest(self, masks: int) -> list[RoundCost]:
        """Return the rounds left of so many masks: as large as the last one, at the average cost of all."""
        done = sum(cost.masks for cost in self.rounds)
        layers = sum(cost.layer_forwards for cost in self.rounds) / done
        heads = sum(cost.head_forwards for cost in self.rounds) / done
        naive = sum(cost.naive_layer_forwards for cost in self.rounds) / done
        size = self.rounds[-1].masks
        sizes = [min(size, masks - start) for start in range(done, masks, size)]
        return [
            RoundCost(size, round(layers * size), round(heads * size), round(naive * size), estimated=True)
            for size in sizes
        ]


class _TooSlow(Exception):
    """The rehearsal took longer than its timeout."""
