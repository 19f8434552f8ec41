"""Exhaustive search."""

import itertools
from types import SimpleNamespace

import pytest

from raysearch.calibration.objectives.perplexity import PerplexityObjective
from raysearch.core.problem import Problem
from raysearch.errors import EvaluationError, UserError
from raysearch.searchers.exhaustive import ExhaustiveSearcher
from raysearch.searching import forecaster
from raysearch.searching.forecaster import Forecaster
from raysearch.testing.searcher_suite import rugged_loss
from tests.searchers.toys import rounds_of
from tests.sentences import Sentences


def test_every_mask_is_scored_once_in_order():
    problem = Problem.create(12, 4, protect=[3])
    mask, rounds = rounds_of(ExhaustiveSearcher(round_size=100), problem, rugged_loss(problem, 0))
    scored = [mask for masks in rounds for mask in masks]
    assert [len(masks) for masks in rounds] == [1, 100, 100, 100, 29]  # C(11, 4) = 330
    assert scored == sorted(set(scored))
    assert mask == min(scored, key=rugged_loss(problem, 0))


def test_a_round_of_failures_is_not_the_end(sentences: Sentences):
    problem = Problem.create(6, 2)
    loss = rugged_loss(problem, 0)
    mask, rounds = rounds_of(
        ExhaustiveSearcher(round_size=5), problem, lambda mask: float("nan") if 0 in mask else loss(mask)
    )
    assert 0 not in mask
    assert len(rounds) == 4
    with sentences.refused(EvaluationError):
        rounds_of(ExhaustiveSearcher(), problem, lambda mask: float("nan"))


def test_too_large_a_space_is_refused_before_any_evaluation(sentences: Sentences):
    problem = Problem.create(34, 7, protect=[0, -1])
    with sentences.refused(UserError):
        rounds_of(ExhaustiveSearcher(), problem, lambda mask: pytest.fail("nothing should be evaluated"))


def test_the_count_needs_no_complete_rehearsal(monkeypatch):
    problem = Problem.create(20, 5)
    whole = Forecaster(60).forecast(ExhaustiveSearcher(), problem, seed=0, objectives=[PerplexityObjective()])
    ticks = itertools.count()
    monkeypatch.setattr(forecaster, "time", SimpleNamespace(process_time=lambda: next(ticks)))
    hasty = Forecaster(5).forecast(ExhaustiveSearcher(), problem, seed=0, objectives=[PerplexityObjective()])
    assert whole is not None
    assert hasty is not None
    assert [cost.masks for cost in hasty] == [cost.masks for cost in whole]
    assert sum(cost.masks for cost in hasty) == problem.n_solutions == 15_504
    assert hasty[-1].estimated
    assert not any(cost.estimated for cost in whole)
    layers = [sum(cost.layer_forwards for cost in costs) for costs in (hasty, whole)]
    assert layers[1] / 2 < layers[0] < layers[1] * 2  # the first masks share less than most
