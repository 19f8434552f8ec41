"""A search is rehearsed once, even if its cost is forecast several times."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
from typing_extensions import override

from raysearch.calibration.objectives.generation_accuracy import GenerationAccuracyObjective
from raysearch.calibration.objectives.kl import KLObjective
from raysearch.calibration.objectives.perplexity import PerplexityObjective
from raysearch.cli.displays import forecast_line
from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.core.statistic import Statistic
from raysearch.searchers.base import Searcher, SearchGenerator
from raysearch.searchers.beam import BeamSearcher
from raysearch.searchers.cbo import CboSearcher
from raysearch.searchers.fast_block_select import FastBlockSelectSearcher
from raysearch.searchers.genetic import GeneticSearcher
from raysearch.searchers.importance import ImportanceSearcher
from raysearch.searchers.reverse_order import ReverseOrderSearcher
from raysearch.searching.forecast import SearchForecast
from raysearch.searching.forecaster import Forecaster

PROBLEM = Problem.create(n_layers=12, remove=3)


@dataclass(frozen=True)
class Counted(Searcher):
    """A wrapper that counts how often a searcher is started."""

    searcher: Searcher
    starts: list[int] = field(default_factory=list, compare=False)

    @override
    def search(self, problem: Problem, rng: np.random.Generator) -> SearchGenerator:
        self.starts.append(1)
        return (yield from self.searcher.search(problem, rng))


def test_a_search_that_was_rehearsed_is_not_rehearsed_again() -> None:
    objectives = [PerplexityObjective()], [KLObjective()], [GenerationAccuracyObjective(), PerplexityObjective()]
    searcher = Counted(GeneticSearcher())
    forecaster = Forecaster(60)
    cached: set[Mask | Statistic] = set()
    for some_objectives in objectives:
        separate = Forecaster().forecast(searcher.searcher, PROBLEM, 0, some_objectives)
        assert forecaster.forecast(searcher, PROBLEM, 0, some_objectives) == separate
    first = forecaster.forecast(searcher, PROBLEM, 0, objectives[0], cached)
    second = forecaster.forecast(searcher, PROBLEM, 0, objectives[0], cached)
    assert first == Forecaster().forecast(searcher.searcher, PROBLEM, 0, objectives[0])
    assert second is not None
    assert not any(cost.layer_forwards for cost in second)
    assert len(searcher.starts) == 1
    forecaster.forecast(searcher, PROBLEM, 1, objectives[0])
    forecaster.forecast(searcher, Problem.create(n_layers=12, remove=4), 0, objectives[0])
    assert len(searcher.starts) == 3


def test_statistics_are_counted_again() -> None:
    searcher = ImportanceSearcher("block_influence")
    forecaster = Forecaster(60)
    first, second = (forecaster.forecast(searcher, PROBLEM, 0, [PerplexityObjective()]) for _ in range(2))
    assert first == second
    assert first is not None
    assert sum(cost.layer_forwards for cost in first) >= len(PROBLEM.sites)


def test_a_rehearsal_that_took_too_long_is_not_tried_again() -> None:
    searcher = Counted(GeneticSearcher())
    forecaster = Forecaster(-1)
    assert [forecaster.forecast(searcher, PROBLEM, 0, [PerplexityObjective()]) for _ in range(2)] == [None, None]
    assert len(searcher.starts) == 1


def test_the_line_shows_if_the_losses_decide_how_many_masks_there_are() -> None:
    for searcher, pattern in (
        (FastBlockSelectSearcher(), r"about \d+ masks in \d rounds: about \d+ layer-forwards.*and about \d+ head-f.*s"),
        (BeamSearcher(width=2), r"about \d+ masks in 3 rounds: about \d+ .* instead of \d+, and about \d+ head-.*s"),
        (BeamSearcher(width=1), r"33 masks in 3 rounds: about \d+ .* instead of 332, and 34 head-forwards at most"),
        (
            ReverseOrderSearcher(),
            "1 mask in 1 round: about 12 layer-forwards over the calibration, and 2 head-forwards .*",
        ),
    ):
        rounds = Forecaster().forecast(searcher, PROBLEM, 0, [PerplexityObjective()])
        line = forecast_line(SearchForecast(rounds, open_ended=searcher.open_ended))
        assert re.fullmatch(pattern, line), line


def test_the_dense_model_is_not_counted() -> None:
    costs = Forecaster().forecast(CboSearcher(k=4), Problem.create(6, 2), seed=0, objectives=[PerplexityObjective()])
    assert costs is not None
    assert costs[0].masks == 6 + 15
    assert costs[0].naive_layer_forwards == 6 * 5 + 15 * 4
