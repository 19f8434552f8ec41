"""The cost of a search, forecast before it runs, without its model.

A searcher is a deterministic function of the scores it is sent, and what it costs hardly depends on them; so it is run
once against made-up additive scores, which its statistics tell in part, and the prefix plans of its rounds are kept.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from raysearch.calibration.objectives.base import Objective
from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.core.statistic import Statistic
from raysearch.evaluation.costs import check_statistic, passes
from raysearch.evaluation.pool import PoolSize
from raysearch.evaluation.prefix import naive_layer_forwards
from raysearch.searchers.base import Remark, Round, Scores, Searcher
from raysearch.searching.driver import Oracle, run_rounds


@dataclass(frozen=True)
class RoundCost:
    """The cost of a round on an empty ledger. Forwards are passes over the whole calibration.

    Args:
        head_forwards: Times the final norm and head run.
        naive_layer_forwards: Layers that one full forward per mask would run.
        estimated: Whether only the number of masks is sure.
    """

    masks: int
    layer_forwards: int
    head_forwards: int
    naive_layer_forwards: int
    estimated: bool = False


@dataclass(frozen=True)
class SearchForecast:
    """The cost of a search on an empty ledger.

    Args:
        rounds: Of each round; None where that cannot be known.
        head_cost: Of a head-forward, in layer-forwards, by parameters.
        by_budget: Whether it may end before the last round, as a budget allows.
        screened: Whether screening may leave a part out.
        open_ended: Whether the losses decide how many masks and rounds there are.
        trainings: Masks that are recovered after the rounds.
        training_steps: Steps of each recovery.
        seconds: How long the rounds take on this machine, with the replicas of `pool`; None where that is not known.
        time_source: What `seconds` was measured on, or why it is None.
        pool: The replicas and their memory; None where the data were not read.
    """

    rounds: list[RoundCost] | None
    head_cost: float = 0.0
    by_budget: bool = False
    screened: bool = False
    open_ended: bool = False
    trainings: int = 0
    training_steps: int = 0
    seconds: float | None = None
    time_source: str = ""
    pool: PoolSize | None = None

    def n_passes(self, n_layers: int) -> float:
        """Return how many runs of the whole model on a shard the largest round is worth; infinite if not known."""
        if self.rounds is None:
            return math.inf
        return max((cost.layer_forwards for cost in self.rounds), default=0) / n_layers

    @property
    def cost(self) -> float | None:
        """The cost of all rounds in layer-forwards, heads included."""
        if self.rounds is None:
            return None
        return sum(cost.layer_forwards + self.head_cost * cost.head_forwards for cost in self.rounds)


class Forecaster:
    """Forecasts many searches; those that ask for the same masks, whatever these are evaluated on, it rehearses once.

    A rehearsal may take `timeout_s` seconds of processor time, so that a busy machine forecasts the same.
    """

    def __init__(self, timeout_s: float = 2.0) -> None:
        self._timeout_s = timeout_s
        self._rehearsals: list[tuple[tuple[Searcher, Problem, int], _Rehearsal]] = []

    def forecast(
        self,
        searcher: Searcher,
        problem: Problem,
        seed: int,
        objectives: Sequence[Objective],
        known: set[Mask | Statistic] | None = None,
    ) -> list[RoundCost] | None:
        """Return the expected cost of each round, by a rehearsal on made-up scores, the same for every search.

        Several objectives are taken to have as many samples each. The ledger is taken to know what is `known`, to which
        what this search asks for is added. If the rehearsal takes too long, the rounds it did not come to are taken to
        be like the others, where the searcher can `count` its masks; else None is returned.

        Raises:
            UserError: The searcher asks for gradients that the objectives do not have.
        """
        rehearsal = self._rehearsal(searcher, problem, seed)
        rounds = _costs(rehearsal.asked, problem.n_layers, objectives, set() if known is None else known)
        if rehearsal.is_whole:
            return rounds
        masks = searcher.count(problem)
        return None if masks is None else rounds + _rest(rounds, masks)

    def _rehearsal(self, searcher: Searcher, problem: Problem, seed: int) -> _Rehearsal:
        search = searcher, problem, seed
        for other, rehearsal in self._rehearsals:
            if other == search:
                return rehearsal
        rehearsal, deadline = _Rehearsal(problem), time.process_time() + self._timeout_s
        with closing(run_rounds(searcher, problem, seed, rehearsal)) as rounds:
            rehearsal.is_whole = all(time.process_time() <= deadline for _ in rounds)
        self._rehearsals.append((search, rehearsal))
        return rehearsal


class _Rehearsal(Oracle):
    """Answers with made-up numbers, and keeps what was asked for; `is_whole` once that is all."""

    def __init__(self, problem: Problem) -> None:
        self.asked: list[Round | Statistic] = []
        self.is_whole = False
        self._layer_costs, other = np.random.default_rng(0).random((2, problem.n_layers))
        self._statistic = (self._layer_costs + other) / 2

    @override
    def evaluate(self, proposed: Round) -> Scores:
        self.asked.append(proposed)
        return Scores({mask: float(self._layer_costs[list(mask)].sum()) for mask in proposed.masks})

    @override
    def measure(self, statistic: Statistic) -> NDArray[np.float64]:
        """Return the same numbers for every statistic, or ones."""
        self.asked.append(statistic)
        shape = statistic.shape(len(self._statistic))
        return np.broadcast_to(self._statistic, (1, *shape)) if len(shape) == 1 else np.ones((1, *shape))

    @override
    def note(self, remark: Remark) -> None:
        """Do nothing: made-up scores are worth no remark."""


def _costs(
    asked: Iterable[Round | Statistic], n_layers: int, objectives: Sequence[Objective], known: set[Mask | Statistic]
) -> list[RoundCost]:
    """Return the cost of each round, that of statistics with the round after them; add to `known` what is asked for."""
    rounds = []
    surveyed = surveyed_naively = 0  # layer-forwards of statistics since the last round
    for request in asked:
        if isinstance(request, Statistic):
            check_statistic(request, objectives)
            surveyed_naively += request.passes * n_layers
            surveyed += 0 if request in known else request.passes * n_layers
            known.add(request)
            continue
        masks = [mask for mask in request.masks if mask]  # the dense model is not counted, but runs in the first round
        new = [mask for mask in (Mask(), *request.masks) if mask not in known]
        costs = [passes(objective, new, n_layers) for objective in objectives]
        layers, heads = (round(sum(cost) / len(costs)) for cost in zip(*costs, strict=True))
        naive = naive_layer_forwards(masks, n_layers) + surveyed_naively
        rounds.append(RoundCost(len(masks), layers + surveyed, heads, naive))
        known.update(new)
        surveyed = surveyed_naively = 0
    return rounds


def _rest(rounds: Sequence[RoundCost], masks: int) -> list[RoundCost]:
    """Return the rounds left of so many masks: as large as the last one, at the average cost of all."""
    done, size = sum(cost.masks for cost in rounds), rounds[-1].masks
    forwards = [(cost.layer_forwards, cost.head_forwards, cost.naive_layer_forwards) for cost in rounds]
    layers, heads, naive = (sum(each) / done for each in zip(*forwards, strict=True))
    return [
        RoundCost(size, round(layers * size), round(heads * size), round(naive * size), estimated=True)
        for size in (min(size, masks - start) for start in range(done, masks, size))
    ]
