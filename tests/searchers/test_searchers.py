"""Every searcher that ships, by its YAML: the conformance suite, what each costs, and the options that it refuses."""

import math
from dataclasses import replace
from typing import Any

import pytest
import yaml

from raysearch.bridges.nevergrad import NevergradSearcher
from raysearch.bridges.tune_algorithm import TuneAlgorithmSearcher
from raysearch.config.parts import build_searcher, conf_dir
from raysearch.core.problem import Problem
from raysearch.errors import EvaluationError
from raysearch.searchers.angular_window import AngularWindowSearcher
from raysearch.searchers.bayesian import BayesianSearcher
from raysearch.searchers.beam import BeamSearcher
from raysearch.searchers.cbo import CboSearcher
from raysearch.searchers.exhaustive import ExhaustiveSearcher
from raysearch.searchers.fast_block_select import FastBlockSelectSearcher
from raysearch.searchers.genetic import GeneticSearcher
from raysearch.searchers.importance import ImportanceSearcher
from raysearch.searchers.random_subset import RandomSubsetSearcher
from raysearch.testing.searcher_suite import SearcherSuite, drive, rugged_loss
from tests.cases import assert_refused

FILES = sorted((conf_dir() / "searcher").glob("*.yaml"))
#: How many masks the rounds have at 32 layers, of which 7 go; see the tests of each for those that are not here.
ROUNDS = {
    **{name: [1] for name in ("angular_distance", "block_influence", "magnitude", "taylor", "reverse")},
    "one_shot": [32, 1],  # the ablations, and the mask they add up to
    "random": [20],
    "cbo": [1 + 528, 20],
    "cbo_gradient": [20],
    "genetic": [32, 16, *[13] * 10],
}
#: What each class refuses, and how.
REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (AngularWindowSearcher, {"tokens": "first"}, "searcher.tokens=first is unknown; choose one of: last, all"),
    (BayesianSearcher, {"trials": 0}, "searcher.trials=0 scores nothing; use 1 or more"),
    (BayesianSearcher, {"trials": 5}, "searcher.initial=10 is not a part of searcher.trials=5; use 1..5"),
    (BayesianSearcher, {"initial": 0}, "searcher.initial=0 is not a part"),
    (BayesianSearcher, {"batch": 0}, "searcher.batch=0 asks for nothing"),
    (BayesianSearcher, {"prior": "magic"}, "searcher.prior=magic is unknown; choose one of: ablation, influence, none"),
    (BeamSearcher, {"width": 0}, "searcher.width=0 keeps no mask; use 1 (greedy) or more"),
    (CboSearcher, {"k": 0}, "searcher.k=0 scores no mask; use 1 or more"),
    (CboSearcher, {"time_limit_s": 0.0}, "searcher.time_limit_s=0.0 leaves no time to solve"),
    (CboSearcher, {"couplings": "magic"}, "searcher.couplings=magic is unknown; choose one of: ablation, gradient"),
    (CboSearcher, {"first_order": False}, "searcher.first_order=false drops what searcher.couplings=ablation measures"),
    (ExhaustiveSearcher, {"round_size": 0}, "searcher.round_size=0 asks for nothing; use 1 or more"),
    (ExhaustiveSearcher, {"limit": 0}, "searcher.limit=0 allows no mask; use 1 or more"),
    (FastBlockSelectSearcher, {"k": 0}, "searcher.k=0 tries no exchange; use 1 or more"),
    (FastBlockSelectSearcher, {"rounds": 0}, "searcher.rounds=0 exchanges nothing; use 1 or more"),
    (FastBlockSelectSearcher, {"prior": "none"}, "searcher.prior=none is unknown; choose one of: influence, ablation"),
    (GeneticSearcher, {"population": 1}, "searcher.population=1 cannot breed; use 2 or more"),
    (GeneticSearcher, {"generations": 0}, "searcher.generations=0 breeds nothing"),
    (GeneticSearcher, {"elitism": 1.0}, "searcher.elitism=1.0 is not a share"),
    (GeneticSearcher, {"elitism": math.nan}, "searcher.elitism=nan is not a share"),
    (GeneticSearcher, {"elitism": -0.1}, "searcher.elitism=-0.1 is not a share"),
    (GeneticSearcher, {"mutation": 1.5}, "searcher.mutation=1.5 is not a probability"),
    (GeneticSearcher, {"prior": "magic"}, "searcher.prior=magic is unknown; choose one of: ablation, influence, none"),
    (GeneticSearcher, {"temperature": 0.0}, "searcher.temperature=0.0 orders no layers"),
    (ImportanceSearcher, {"criterion": "size"}, "searcher.criterion=size is unknown; choose one of: block_influence, "),
    (RandomSubsetSearcher, {"k": 0}, "searcher.k=0 draws no mask; use 1 or more"),
    (NevergradSearcher, {"trials": 0}, "searcher.trials=0 scores nothing; use 1 or more"),
    (NevergradSearcher, {"batch": 0}, "searcher.batch=0 asks for nothing; use 1 or more"),
    (NevergradSearcher, {"prior": "magic"}, "searcher.prior=magic is unknown; choose one of: ablation, influence, "),
    (NevergradSearcher, {"optimizer": "DiscreteOnePlusTwo"}, "searcher.optimizer=.* is unknown; did you mean"),
    (NevergradSearcher, {"optimizer": "cma"}, "searcher.optimizer=cma is unknown; did you mean 'CMA'"),
    (NevergradSearcher, {"optimizer": "§"}, "is unknown; choose one of: CMA, DE, DiscreteOnePlusOne, NGOpt, PSO$"),
    (NevergradSearcher, {"optimizer": "Cobyla"}, "searcher.batch=8 is too many for .*; use searcher.batch=1"),
    (TuneAlgorithmSearcher, {"trials": 0}, "searcher.trials=0 scores nothing; use 1 or more"),
    (TuneAlgorithmSearcher, {"batch": 0}, "searcher.batch=0 asks for nothing; use 1 or more"),
    (TuneAlgorithmSearcher, {"algorithm": "optna"}, "searcher.algorithm=optna is unknown; did you mean 'optuna'?"),
    (TuneAlgorithmSearcher, {"algorithm": "bohb"}, "=bohb cannot be used: .*; use searcher.algorithm=optuna"),
    (TuneAlgorithmSearcher, {"algorithm": "nevergrad"}, "=nevergrad cannot be used: .*; use searcher=nevergrad"),
    (
        TuneAlgorithmSearcher,
        {"algorithm": "optuna", "options": {"sed": 1}},
        "searcher.options.sed is no option of searcher.algorithm=optuna; did you mean 'seed'?",
    ),
]


def shipped(name):
    """A searcher as its YAML makes it."""
    return build_searcher(yaml.safe_load((conf_dir() / "searcher" / f"{name}.yaml").read_text()))


def fails_beyond(largest):
    """A loss of masks of this size at most; larger ones fail."""
    return lambda mask: 1.0 if len(mask) <= largest else math.nan


@pytest.fixture(params=[file.stem for file in FILES])
def name(request):
    return request.param


class TestShippedSearchers(SearcherSuite):
    @pytest.fixture(autouse=True)
    def _name(self, name):
        self.name = name

    def make_searcher(self):
        """As shipped, but of few trials: `test_golden.py` runs all of them."""
        searcher = shipped(self.name)
        return replace(searcher, trials=40) if hasattr(searcher, "trials") else searcher

    def test_a_search_without_any_score_ends_with_the_cause(self):
        problem = Problem.create(5, 2)
        for largest in (0, 1):  # no layer can be ablated, or no mask of two be evaluated
            with pytest.raises(EvaluationError, match="the loss is nan"):
                self.drive(fails_beyond(largest), problem=problem)


@pytest.mark.parametrize("name", ROUNDS)
def test_rounds_at_32_layers_remove_7(name):
    problem = Problem.create(32, 7)
    _, rounds = drive(shipped(name), problem, rugged_loss(problem, seed=0))
    assert [len(proposed.masks) for proposed in rounds] == ROUNDS[name]


@pytest.mark.parametrize("name", ["genetic", "bayesian", "random"])
def test_another_seed_is_another_search(name):
    problem = Problem.create(12, 4)
    loss = rugged_loss(problem, seed=0)
    assert drive(shipped(name), problem, loss, seed=1)[1] != drive(shipped(name), problem, loss, seed=2)[1]


def test_options_that_cannot_be():
    assert_refused(lambda case: case[0](**case[1]), [((made, options), said) for made, options, said in REFUSED])
