"""Search algorithms of Ray Tune as searchers."""

import itertools
import logging
import math
import warnings

import pytest
import ray.tune
from ray.tune.search.optuna import OptunaSearch

from raysearch.bridges.ray_tune import TuneSearcher
from raysearch.bridges.tune_algorithm import TuneAlgorithmSearcher, search_with
from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.errors import UserError
from raysearch.searchers.base import Searcher
from raysearch.testing.searcher_suite import additive_loss, drive, rugged_loss
from tests.sentences import Sentences

PROBLEM = Problem.create(6, 2)
LOSS = rugged_loss(PROBLEM, seed=3)
FINISHED = TuneSearcher.FINISHED


class Scripted(ray.tune.search.Searcher):
    """An algorithm that proposes the points of a script, and keeps the reports that it receives."""

    def __init__(self, *script):
        super().__init__()
        self.script = list(script)
        self.reports = []

    def set_search_properties(self, metric, mode, config, **spec):
        self.names = list(config)
        return True

    def suggest(self, trial_id):
        point = self.script.pop(0) if self.script else FINISHED
        return dict(zip(self.names, point, strict=True)) if isinstance(point, tuple) else point

    def on_trial_complete(self, trial_id, result=None, error=False):
        self.reports.append((trial_id, result and result["loss"], error))


class Uses(Searcher):
    """A searcher that uses a given algorithm."""

    def __init__(self, algorithm, trials, batch=1):
        self.algorithm = algorithm
        self.trials = trials
        self.batch = batch

    def search(self, problem, rng):
        return search_with(self.algorithm, problem, self.trials, self.batch, {})


def test_the_largest_coordinates_go():
    algorithm = Scripted((0.5, 0.1, 0.5, 0.5), (0.9, 0.1, 0.2, 0.3))
    problem = Problem.create(5, 2, protect=[1])
    mask, rounds = drive(Uses(algorithm, trials=5), problem, lambda mask: float(sum(mask)))
    assert algorithm.names == ["layer_0", "layer_2", "layer_3", "layer_4"]
    assert [proposed.masks for proposed in rounds] == [(Mask.of(0, 3),), (Mask.of(0, 4),)]  # ties go to the first
    assert mask == Mask.of(0, 3)


def test_an_algorithm_may_wait_repeat_itself_and_end():
    first = (0.9, 0.0, 0.0)
    second = (0.0, 0.9, 0.0)
    third = (0.0, 0.0, 0.9)
    algorithm = Scripted(None, first, second, first, None, third, None, first)
    mask, rounds = drive(
        Uses(algorithm, trials=9, batch=3), Problem.create(3, 1), lambda mask: math.nan if 1 in mask else sum(mask)
    )
    assert [proposed.masks for proposed in rounds] == [(Mask.of(0), Mask.of(1)), (Mask.of(2),)]
    assert algorithm.reports == [("1", 0, False), ("2", None, True), ("3", 0, False), ("5", 2, False)]
    assert mask == Mask.of(0)


@pytest.mark.parametrize("algorithm", ["variant_generator", "optuna"])
@pytest.mark.parametrize("batch", [1, 4])
def test_algorithms_are_seeded(algorithm, batch):
    problem = Problem.create(12, 4)
    loss = rugged_loss(problem, seed=1)
    searcher = TuneAlgorithmSearcher(algorithm, trials=12, batch=batch)
    mask, rounds = drive(searcher, problem, loss, seed=7)
    assert drive(searcher, problem, loss, seed=7) == (mask, rounds)
    assert drive(searcher, problem, loss, seed=8)[1] != rounds
    masks = [mask for proposed in rounds for mask in proposed.masks]
    assert len(masks) == len(set(masks)) == 12
    assert mask == min(masks, key=loss)


def test_optuna_learns():
    problem = Problem.create(16, 5)
    loss = additive_loss(problem, seed=2)
    mask, _ = drive(TuneAlgorithmSearcher("optuna", trials=60), problem, loss)
    blind, _ = drive(TuneAlgorithmSearcher("random", trials=60), problem, loss)
    assert loss(mask) < loss(blind)


def test_an_algorithm_that_has_converged_is_started_again(monkeypatch):
    first = (0.9, 0.0, 0.0)
    second = (0.0, 0.9, 0.0)
    started = [Scripted(first), Scripted(first, second), Scripted()]
    opened = iter(started)
    searcher = TuneAlgorithmSearcher(trials=3)
    monkeypatch.setattr(TuneAlgorithmSearcher, "_open", lambda self, seed: next(opened))
    mask, rounds = drive(searcher, Problem.create(3, 1), lambda mask: -float(sum(mask)))
    assert [proposed.masks for proposed in rounds] == [(Mask.of(0),), (Mask.of(1),)]
    assert [algorithm.reports for algorithm in started] == [
        [("0", 0, False)],
        [("0", 0, False), ("1", -1, False)],
        [],  # no new mask, so the search ends
    ]
    assert mask == Mask.of(1)


def test_optuna_is_quiet(capfd):
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        drive(TuneAlgorithmSearcher("optuna", trials=3), PROBLEM, LOSS)
    assert not warned
    assert capfd.readouterr() == ("", "")
    assert logging.getLogger("optuna").level == logging.INFO  # as it was


@pytest.mark.parametrize("algorithm", ["variant_generator", "optuna"])
def test_a_search_ends_when_all_masks_are_scored(algorithm):
    problem = Problem.create(3, 1)
    _, rounds = drive(TuneAlgorithmSearcher(algorithm, trials=50, batch=2), problem, additive_loss(problem, 0))
    assert sorted(itertools.chain(*(proposed.masks for proposed in rounds))) == list(problem.singles)


def test_options_reach_the_algorithm():
    first = {"layer_0": 0.9, "layer_1": 0.8} | {f"layer_{layer}": 0.1 for layer in range(2, 6)}
    searcher = TuneAlgorithmSearcher("optuna", trials=2, options={"points_to_evaluate": [first], "seed": 1})
    _, rounds = drive(searcher, PROBLEM, LOSS)
    assert rounds[0].masks == (Mask.of(0, 1),)


def test_an_algorithm_that_has_a_search_space_is_refused(sentences: Sentences):
    from optuna.distributions import FloatDistribution

    algorithm = OptunaSearch({"x": FloatDistribution(0, 1)}, metric="loss", mode="min", seed=0)
    with sentences.refused(UserError):
        drive(Uses(algorithm, trials=2), PROBLEM, LOSS)


def test_an_option_that_it_does_not_understand_is_reported(sentences: Sentences):
    for options in ({"points_to_evaluate": 3}, {"seed": "x"}):
        searcher = TuneAlgorithmSearcher("optuna", options=options)
        with sentences.refused(UserError):
            drive(searcher, PROBLEM, LOSS)


def test_a_missing_package_is_named(monkeypatch, sentences: Sentences):
    monkeypatch.setattr("ray.tune.search.optuna.optuna_search.ot", None)
    with sentences.refused(UserError):
        TuneAlgorithmSearcher("optuna")
