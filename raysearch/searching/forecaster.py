"""Forecasts the cost of a search before it runs, without its model.

A searcher is a deterministic function of the scores that it receives, and its cost hardly depends on them. So it runs
once with made-up scores, to which each layer adds a fixed amount, and the prefix plans of its rounds give the cost. Its
made-up statistics are correlated with these amounts.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from raysearch.calibration.objectives.base import Objective
from raysearch.core.mask import Mask
from raysearch.core.paths import as_folder
from raysearch.core.problem import Problem
from raysearch.core.scale import Repair
from raysearch.core.site import Sites
from raysearch.core.statistic import Statistic
from raysearch.evaluation.costs import check_statistic, head_cost, n_units, passes
from raysearch.evaluation.prefix import naive_layer_forwards
from raysearch.evaluation.prepared_data import UnnamedFiles, prepare_data
from raysearch.models.spec import ModelInfo
from raysearch.searchers.base import Loss, Remark, Round, Scores, Searcher
from raysearch.searching.driver import Oracle, run_rounds
from raysearch.searching.forecast import RoundCost, SearchForecast
from raysearch.searching.notices import announce_large_files, describe_model, warn_before_search
from raysearch.searching.observer import Observer
from raysearch.searching.recommend import check_readout
from raysearch.searching.spec import SearchSpec
from raysearch.searching.stages import stage_problems


def forecast_search(spec: SearchSpec, observer: Observer) -> SearchForecast:
    """Forecast the cost of a search with an empty ledger. Data are read, weights are not, and nothing is recorded.

    Args:
        spec: The search.
        observer: Gets progress and warnings.

    Returns:
        The numbers of masks and forwards, the seconds with their source, and the memory of the replicas.

    Raises:
        UserError: As `search_rounds`, except for errors that only the weights or a cluster show.
    """
    evaluation = spec.evaluation
    info = describe_model(evaluation.model, observer)
    spec.check_model(info)
    expected = expected_cost(spec, info)
    evaluation.cluster.check_model(info.model)
    as_folder("store", evaluation.ledger.parent)
    announce_large_files(evaluation, observer)
    calibrations = prepare_data(evaluation, info, UnnamedFiles(info.model)).calibrations
    if spec.budget is not None:
        check_readout(spec.budget, evaluation.measure)
    warn_before_search(spec, info, calibrations, observer)
    pool = evaluation.cluster.size(info, n_units(calibrations, expected.n_passes(info.sites)))
    if expected.cost is None:
        return replace(expected, time_source="since the number of masks is not known in advance", pool=pool)

    from raysearch.evaluation.timing import time_layers  # imports torch

    observer.assessing("timing: a few layers on a shard of each calibration")
    times = time_layers(info, evaluation.calibrations, calibrations, evaluation.cluster.cpus_per_replica)
    seconds = None if times.seconds is None else expected.cost * sum(times.seconds) / pool.n_replicas
    return replace(expected, seconds=seconds, time_source=times.source, pool=pool)


def expected_cost(spec: SearchSpec, info: ModelInfo) -> SearchForecast:
    """Return the expected cost of a search in layer-forwards; no data are read.

    Args:
        spec: The search.
        info: The model.

    Returns:
        The forecast, without seconds and memory.

    Raises:
        UserError: The searcher needs gradients that the objective does not have, or no mask is legal.
    """
    problem = spec.problem(info)
    n_trainings = training_steps = 0
    if spec.refiner is not None:
        n_trainings = spec.refiner.masks
        training_steps = spec.refiner.steps
    if spec.healer is None:
        rounds = Forecaster().forecast(
            spec.searcher, problem, spec.seed, spec.evaluation.objectives, repair=spec.evaluation.repair
        )
    else:
        rounds = _rounds_of_stages(spec, problem, spec.healer.schedule)
        n_trainings = len(spec.healer.schedule)
        training_steps = spec.healer.steps or 0
    return SearchForecast(
        rounds=rounds,
        head_cost=head_cost(info),
        by_budget=spec.budget is not None,
        screened=spec.evaluation.screening is not None,
        open_ended=spec.searcher.open_ended,
        trainings=n_trainings,
        training_steps=training_steps,
        in_stages=spec.healer is not None,
        target=spec.target_limits(info),
    )


def _rounds_of_stages(spec: SearchSpec, problem: Problem, schedule: Sequence[int]) -> list[RoundCost] | None:
    """Return the cost of the rounds of all stages, and of a last round on the original model; None if not known."""
    objectives = spec.evaluation.objectives
    forecaster = Forecaster()
    rounds: list[RoundCost] = []
    for stage_problem in stage_problems(problem, schedule):
        stage_rounds = forecaster.forecast(spec.searcher, stage_problem, spec.seed, objectives)
        if stage_rounds is None:
            return None
        rounds += stage_rounds
    masks = [Mask(problem.free[-size:]) for size in itertools.accumulate(schedule)]
    return [*rounds, *_costs([Round(masks)], problem.sites.layers, objectives, {Mask()})]


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
        repair: Repair = "none",
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
            repair: How masks are repaired before they are evaluated.

        Returns:
            The cost of each round; None if the rehearsal takes too long and the searcher cannot `count`.

        Raises:
            UserError: The searcher needs gradients that the objectives do not have.
        """
        rehearsal = self._rehearsal(searcher, problem, seed)
        requests = rehearsal.requests if repair == "none" else [Statistic.NORM_RATIO, *rehearsal.requests]
        rounds = _costs(requests, problem.sites.layers, objectives, set() if cached is None else cached)
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
        self._sites = problem.sites.layers
        self._layer_costs, noise = np.random.default_rng(0).random((2, len(self._sites)))
        self._statistic = (self._layer_costs + noise) / 2

    @override
    def evaluate(self, proposed: Round) -> Scores:
        self.requests.append(proposed)
        return Scores(proposed, {mask: Loss(self._loss(mask)) for mask in proposed.masks})

    @override
    def measure(self, statistic: Statistic) -> NDArray[np.float64]:
        """Return the same numbers for every statistic of one number per layer or half, and ones for the others."""
        self.requests.append(statistic)
        shape = statistic.shape(self._sites)
        numbers = np.repeat(self._statistic, 2) if statistic.is_of_halves else self._statistic
        return np.broadcast_to(numbers, (1, *shape)) if len(shape) == 1 else np.ones((1, *shape))

    def _loss(self, mask: Mask) -> float:
        """Return the sum of the made-up costs of layers; an attention costs a third of its layer, an MLP the rest."""
        shares = [1 / 3 if half.part == "attention" else 2 / 3 for half in mask.halves]
        of_halves = sum(share * self._layer_costs[half.layer] for share, half in zip(shares, mask.halves, strict=True))
        return float(self._layer_costs[list(mask.layers)].sum() + of_halves)

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
        new_masks = [mask for mask in (Mask(), *request.masks) if mask not in cached]
        costs = [passes(objective, new_masks, sites) for objective in objectives]
        layers, heads = (round(sum(cost) / len(costs)) for cost in zip(*costs, strict=True))
        naive = naive_layer_forwards(masks, sites) + naive_statistic_forwards
        rounds.append(RoundCost(len(masks), layers + round(statistic_forwards), heads, round(naive)))
        cached.update(new_masks)
        statistic_forwards = naive_statistic_forwards = 0.0
    return rounds


def _remaining_rounds(rounds: Sequence[RoundCost], n_masks: int) -> list[RoundCost]:
    """Return the rounds after these, for `n_masks` masks in all: as large as the last round, at the average cost."""
    n_done = sum(cost.masks for cost in rounds)
    last_size = rounds[-1].masks
    layers = sum(cost.layer_forwards for cost in rounds) / n_done
    heads = sum(cost.head_forwards for cost in rounds) / n_done
    naive = sum(cost.naive_layer_forwards for cost in rounds) / n_done
    sizes = [min(last_size, n_masks - start) for start in range(n_done, n_masks, last_size)]
    return [
        RoundCost(size, round(layers * size), round(heads * size), round(naive * size), estimated=True)
        for size in sizes
    ]
