"""Forecasts the cost of a search before it runs, without its model.

A searcher is a deterministic function of the scores that it receives, and its cost hardly depends on them. So it runs
once with made-up scores, to which each layer adds a fixed amount, and the prefix plans of its rounds give the cost. Its
made-up statistics are correlated with these amounts.
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
from raysearch.core.site import Sites
from raysearch.core.statistic import Statistic
from raysearch.evaluation.costs import check_statistic, passes
from raysearch.evaluation.pool import PoolSize
from raysearch.evaluation.prefix import naive_layer_forwards
from raysearch.searchers.base import Loss, Remark, Round, Scores, Searcher
from raysearch.searching.driver import Oracle, run_rounds


@dataclass(frozen=True)
class RoundCost:
    """The cost of a round on an empty ledger. Forwards are passes over the whole calibration.

    Args:
        masks: The number of masks.
        layer_forwards: Layer-forwards of the prefix plan.
        head_forwards: How many times the final norm and the head run.
        naive_layer_forwards: Layer-forwards of one full forward per mask.
        estimated: Whether only the number of masks is certain.
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
        rounds: The cost of each round; None if it cannot be forecast.
        head_cost: The cost of a head-forward, in layer-forwards, estimated from the parameters.
        by_budget: Whether the search may end before the last round, when its budget is spent.
        screened: Whether screening may make the search cheaper.
        open_ended: Whether the losses decide how many masks and rounds there are.
        trainings: How many masks are recovered after the rounds.
        training_steps: The steps of each recovery.
        seconds: The time of the rounds on this machine, with the replicas of `pool`, in s; None if it is not known.
        time_source: What `seconds` was measured on, or why it is None; a clause to follow a comma.
        pool: The replicas and their memory; None if the data were not read.
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

    def n_passes(self, sites: Sites) -> float:
        """Return the cost of the largest round on a shard, in forwards of the whole model; infinite if not known.

        Args:
            sites: The sites of the model.
        """
        if self.rounds is None:
            return math.inf
        return max((cost.layer_forwards for cost in self.rounds), default=0) / sites.total_cost

    @property
    def cost(self) -> float | None:
        """The cost of all rounds and their heads, in layer-forwards; None if it cannot be forecast."""
        if self.rounds is None:
            return None
        return sum(cost.layer_forwards + self.head_cost * cost.head_forwards for cost in self.rounds)


class Forecaster:
    """Forecasts many searches. Searches with the same searcher, problem and seed are rehearsed once.

    Args:
        timeout_s: The limit of a rehearsal, in seconds of processor time, so that a busy machine forecasts the same.
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
        cached: set[Mask | Statistic] | None = None,
    ) -> list[RoundCost] | None:
        """Return the expected cost of each round, from a rehearsal with made-up scores.

        If the rehearsal takes too long and the searcher can `count` its masks, the remaining rounds are assumed to be
        like the others.

        Args:
            searcher: The searcher.
            problem: The space of legal masks.
            seed: The seed of the searcher's random numbers.
            objectives: The objective of each calibration; calibrations are assumed to have equal numbers of samples.
            cached: The masks and statistics that the ledger will contain; those of this search are added. None for an
                empty ledger.

        Returns:
            The cost of each round; None if the rehearsal takes too long and the searcher cannot `count`.

        Raises:
            UserError: The searcher needs gradients that the objectives do not have.
        """
        rehearsal = self._rehearsal(searcher, problem, seed)
        rounds = _costs(rehearsal.requests, problem.sites, objectives, set() if cached is None else cached)
        if rehearsal.is_whole:
            return rounds
        masks = searcher.count(problem)
        return None if masks is None else rounds + _remaining_rounds(rounds, masks)

    def _rehearsal(self, searcher: Searcher, problem: Problem, seed: int) -> _Rehearsal:
        search = (searcher, problem, seed)
        for rehearsed_search, rehearsal in self._rehearsals:
            if rehearsed_search == search:
                return rehearsal
        rehearsal = _Rehearsal(problem)
        deadline = time.process_time() + self._timeout_s
        with closing(run_rounds(searcher, problem, seed, rehearsal)) as rounds:
            rehearsal.is_whole = all(time.process_time() <= deadline for _ in rounds)
        self._rehearsals.append((search, rehearsal))
        return rehearsal


class _Rehearsal(Oracle):
    """Answers a searcher with made-up numbers, and keeps its requests; `is_whole` if the searcher came to its end."""

    def __init__(self, problem: Problem) -> None:
        self.requests: list[Round | Statistic] = []
        self.is_whole = False
        self._sites = problem.sites
        self._layer_costs, noise = np.random.default_rng(0).random((2, len(problem.sites)))
        self._statistic = (self._layer_costs + noise) / 2

    @override
    def evaluate(self, proposed: Round) -> Scores:
        self.requests.append(proposed)
        return Scores(proposed, {mask: Loss(float(self._layer_costs[list(mask)].sum())) for mask in proposed.masks})

    @override
    def measure(self, statistic: Statistic) -> NDArray[np.float64]:
        """Return the same numbers for every statistic of one number per layer, and ones for the others."""
        self.requests.append(statistic)
        shape = statistic.shape(self._sites)
        return np.broadcast_to(self._statistic, (1, *shape)) if len(shape) == 1 else np.ones((1, *shape))

    @override
    def note(self, remark: Remark) -> None:
        """Do nothing: remarks on made-up scores are useless."""


def _costs(
    requests: Iterable[Round | Statistic], sites: Sites, objectives: Sequence[Objective], cached: set[Mask | Statistic]
) -> list[RoundCost]:
    """Return the cost of each round and of the statistics before it; add all masks and statistics to `cached`."""
    rounds = []
    statistic_forwards = naive_statistic_forwards = 0.0  # layer-forwards of statistics since the last round
    for request in requests:
        if isinstance(request, Statistic):
            check_statistic(request, objectives)
            naive_statistic_forwards += request.passes * sites.total_cost
            if request not in cached:
                statistic_forwards += request.passes * sites.total_cost
            cached.add(request)
            continue
        masks = [mask for mask in request.masks if mask]  # the dense model runs in the first round, but is not counted
        new = [mask for mask in (Mask(), *request.masks) if mask not in cached]
        costs = [passes(objective, new, sites) for objective in objectives]
        layers, heads = (round(sum(cost) / len(costs)) for cost in zip(*costs, strict=True))
        naive = naive_layer_forwards(masks, sites) + naive_statistic_forwards
        rounds.append(RoundCost(len(masks), layers + round(statistic_forwards), heads, round(naive)))
        cached.update(new)
        statistic_forwards = naive_statistic_forwards = 0.0
    return rounds


def _remaining_rounds(rounds: Sequence[RoundCost], masks: int) -> list[RoundCost]:
    """Return the rounds after these, for `masks` masks in all: as large as the last round, at the average cost."""
    n_done = sum(cost.masks for cost in rounds)
    last_size = rounds[-1].masks
    layers = sum(cost.layer_forwards for cost in rounds) / n_done
    heads = sum(cost.head_forwards for cost in rounds) / n_done
    naive = sum(cost.naive_layer_forwards for cost in rounds) / n_done
    sizes = [min(last_size, masks - start) for start in range(n_done, masks, last_size)]
    return [
        RoundCost(size, round(layers * size), round(heads * size), round(naive * size), estimated=True)
        for size in sizes
    ]
