"""Every YAML of a searcher: the conformance suite, the number of its evaluations, and the options that it refuses."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import yaml

from raysearch.bridges.nevergrad import NevergradSearcher
from raysearch.bridges.tune_algorithm import TuneAlgorithmSearcher
from raysearch.configuration.parts import build_searcher, conf_dir
from raysearch.core.mask import Mask
from raysearch.core.place_limits import PlaceLimits
from raysearch.core.problem import Problem
from raysearch.core.site import Sites
from raysearch.errors import EvaluationError, UserError
from raysearch.searchers.angular_window import AngularWindowSearcher
from raysearch.searchers.bayesian import BayesianSearcher
from raysearch.searchers.beam import BeamSearcher
from raysearch.searchers.cbo import CboSearcher
from raysearch.searchers.exhaustive import ExhaustiveSearcher
from raysearch.searchers.fast_block_select import FastBlockSelectSearcher
from raysearch.searchers.genetic import GeneticSearcher
from raysearch.searchers.importance import ImportanceSearcher
from raysearch.searchers.random_subset import RandomSubsetSearcher
from raysearch.testing.searcher_suite import SearcherSuite, additive_loss, drive, rugged_loss
from tests.searchers.toys import cheapest, rounds_of
from tests.sentences import Sentences

PROBLEM = Problem.create(32, 7)
FILES = sorted((conf_dir() / "searcher").glob("*.yaml"))
#: The number of masks of each round if 7 of 32 layers are removed. Searchers that are not listed have their own tests.
ROUNDS = {
    **{name: [1] for name in ("angular_distance", "block_influence", "magnitude", "taylor", "reverse")},
    "one_shot": [32, 1],  # the ablations, and the mask of the cheapest layers
    "random": [20],
    "cbo": [1 + 528, 20],
    "cbo_gradient": [20],
    "genetic": [32, 16, *[13] * 10],
}
#: A searcher, and options that it refuses.
REFUSED: list[tuple[Any, dict[str, Any]]] = [
    (AngularWindowSearcher, {"tokens": "first"}),
    (BayesianSearcher, {"trials": 0}),
    (BayesianSearcher, {"trials": 5}),
    (BayesianSearcher, {"initial": 0}),
    (BayesianSearcher, {"batch": 0}),
    (BayesianSearcher, {"prior": "magic"}),
    (BeamSearcher, {"width": 0}),
    (BeamSearcher, {"ties": "last"}),
    (CboSearcher, {"k": 0}),
    (CboSearcher, {"time_limit_s": 0.0}),
    (CboSearcher, {"couplings": "magic"}),
    (CboSearcher, {"first_order": False}),
    (ExhaustiveSearcher, {"round_size": 0}),
    (ExhaustiveSearcher, {"limit": 0}),
    (FastBlockSelectSearcher, {"k": 0}),
    (FastBlockSelectSearcher, {"rounds": 0}),
    (FastBlockSelectSearcher, {"prior": "none"}),
    (GeneticSearcher, {"population": 1}),
    (GeneticSearcher, {"population": 10**12}),
    (GeneticSearcher, {"generations": 0}),
    (GeneticSearcher, {"elitism": 1.0}),
    (GeneticSearcher, {"elitism": math.nan}),
    (GeneticSearcher, {"elitism": -0.1}),
    (GeneticSearcher, {"mutation": 1.5}),
    (GeneticSearcher, {"temperature": 0.0}),
    (GeneticSearcher, {"prior": "magic"}),
    (ImportanceSearcher, {"criterion": "size"}),
    (RandomSubsetSearcher, {"k": 0}),
    (NevergradSearcher, {"trials": 0}),
    (NevergradSearcher, {"batch": 0}),
    (NevergradSearcher, {"prior": "magic"}),
    (NevergradSearcher, {"optimizer": "DiscreteOnePlusTwo"}),
    (NevergradSearcher, {"optimizer": "cma"}),
    (NevergradSearcher, {"optimizer": "§"}),
    (NevergradSearcher, {"optimizer": "Cobyla"}),
    (TuneAlgorithmSearcher, {"trials": 0}),
    (TuneAlgorithmSearcher, {"batch": 0}),
    (TuneAlgorithmSearcher, {"algorithm": "optna"}),
    (TuneAlgorithmSearcher, {"algorithm": "bohb"}),
    (TuneAlgorithmSearcher, {"algorithm": "nevergrad"}),
    (TuneAlgorithmSearcher, {"algorithm": "optuna", "options": {"sed": 1}}),
]


def shipped(name):
    """The searcher that a YAML file of conf/searcher/ describes."""
    return build_searcher(yaml.safe_load((conf_dir() / "searcher" / f"{name}.yaml").read_text()))


def short(name):
    """The same searcher with few trials; `test_golden.py` runs all of them."""
    searcher = shipped(name)
    return replace(searcher, trials=24) if hasattr(searcher, "trials") else searcher


def fails_beyond(largest):
    """A loss that is 1 for masks of at most this size; larger masks fail."""
    return lambda mask: 1.0 if len(mask) <= largest else math.nan


@pytest.fixture(params=[file.stem for file in FILES])
def name(request):
    return request.param


class TestShippedSearchers(SearcherSuite):
    @pytest.fixture(autouse=True)
    def _name(self, name):
        self.name = name

    def make_searcher(self):
        return short(self.name)

    def test_a_search_without_any_score_ends_with_the_cause(self):
        problem = Problem.create(5, 2)
        for largest in (0, 1):  # no layer can be ablated; no mask of two layers can be evaluated
            with pytest.raises(EvaluationError, match="the loss is nan"):
                self.drive(fails_beyond(largest), problem=problem)


class TestShippedSearchersOnGroups(SearcherSuite):
    """The whole suite on a problem whose layers can only be removed in groups."""

    problem = Problem.of_model(Sites.of_equal_layers(25), remove=6, protect=[0, -1], limits=PlaceLimits(group=2))

    @pytest.fixture(autouse=True)
    def _name(self, name):
        self.name = name

    def make_searcher(self):
        return short(self.name)


@pytest.mark.parametrize("name", ROUNDS)
def test_rounds_at_32_layers_remove_7(name):
    _, rounds = rounds_of(shipped(name), PROBLEM, rugged_loss(PROBLEM, seed=0))
    assert [len(masks) for masks in rounds] == ROUNDS[name]


@pytest.mark.parametrize("prior", ["ablation", "influence"])
@pytest.mark.parametrize(("searcher_class", "trials"), [(BayesianSearcher, 10), (NevergradSearcher, 1)])
def test_a_prior_finds_an_additive_optimum_at_once(searcher_class, trials, prior):
    loss = additive_loss(PROBLEM, 1)
    mask, rounds = rounds_of(searcher_class(trials=trials, prior=prior), PROBLEM, loss)
    assert mask == rounds[-1][0] == cheapest(PROBLEM, loss)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("searcher_class", "trials", "draws"), [(BayesianSearcher, 60, 2000), (NevergradSearcher, 200, 200)]
)
def test_searchers_that_learn_beat_random_masks(searcher_class, trials, draws, seed):
    loss = rugged_loss(PROBLEM, seed)
    mask, _ = rounds_of(searcher_class(trials=trials, prior="none"), PROBLEM, loss, seed)
    rng = np.random.default_rng(seed)
    assert loss(mask) < min(loss(Mask.of(*rng.permutation(32)[:7].tolist())) for _ in range(draws))


@pytest.mark.parametrize(
    ("searcher_class", "trials", "most"),
    [(BayesianSearcher, 60, 5), (NevergradSearcher, 100, 24)],  # by chance 20 and 33 of the second half
)
def test_failures_count_as_trials_and_are_avoided(searcher_class, trials, most):
    broken = {3, 4, 5, 6}
    loss = rugged_loss(PROBLEM, 4)
    searcher = searcher_class(trials=trials, prior="none")
    _, rounds = rounds_of(searcher, PROBLEM, lambda mask: math.nan if broken & set(mask) else loss(mask))
    solutions = [mask for masks in rounds for mask in masks]
    assert len(solutions) == trials
    assert sum(bool(broken & set(mask)) for mask in solutions[trials // 2 :]) <= most


@pytest.mark.parametrize(
    "searcher",
    [
        BayesianSearcher(trials=100, batch=3),
        BayesianSearcher(trials=10_000, batch=3),
        GeneticSearcher(prior="none", generations=50),
        NevergradSearcher("HaltonSearch", prior="none"),
        RandomSubsetSearcher(k=50),
    ],
    ids=str,
)
def test_a_search_ends_when_every_mask_has_been_proposed(searcher):
    problem = Problem.create(8, 3, protect=[0])
    loss = rugged_loss(problem, 0)
    mask, rounds = rounds_of(searcher, problem, loss)
    solutions = [mask for masks in rounds for mask in masks if len(mask) == 3]
    assert len(solutions) == len(set(solutions)) == problem.n_solutions == 35
    assert mask == min(solutions, key=loss)


@pytest.mark.parametrize("name", ["genetic", "bayesian", "random"])
def test_another_seed_is_another_search(name):
    problem = Problem.create(12, 4)
    loss = rugged_loss(problem, seed=0)
    assert drive(short(name), problem, loss, seed=1)[1] != drive(short(name), problem, loss, seed=2)[1]


def test_wrong_options_are_refused(sentences: Sentences):
    for searcher_class, options in REFUSED:
        with sentences.refused(UserError, case=f"{searcher_class.__name__}, {options}"):
            searcher_class(**options)
