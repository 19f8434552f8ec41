"""Every searcher that ships, by its YAML: the conformance suite, and what each is known to cost."""

from itertools import combinations

import pytest
import yaml

from raysearch.config.parts import build_searcher, conf_dir
from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.errors import EvaluationError, UserError
from raysearch.search.driver import ContractError, run_searcher
from raysearch.searchers.base import Round, Scores, Searcher
from raysearch.searchers.beam import BeamSearcher
from raysearch.searchers.one_shot import OneShotSearcher
from raysearch.testing.searcher_suite import SearcherSuite, ToyOracle, additive_loss, drive, rugged_loss

FILES = sorted((conf_dir() / "searcher").glob("*.yaml"))


@pytest.fixture(params=FILES, ids=lambda file: file.stem)
def section(request):
    return yaml.safe_load(request.param.read_text())


class TestShippedSearchers(SearcherSuite):
    @pytest.fixture(autouse=True)
    def _section(self, section):
        self.section = section

    def make_searcher(self):
        return build_searcher(self.section)


def test_there_are_searchers():
    assert {file.stem for file in FILES} >= {
        *("one_shot", "greedy", "beam", "genetic", "bayesian", "cbo", "random", "exhaustive", "reverse"),
        *("block_influence", "magnitude", "taylor", "angular_distance", "fast_block_select", "cbo_gradient"),
    }


@pytest.mark.parametrize("name", ["genetic", "bayesian", "random"])
def test_another_seed_is_another_search(name):
    searcher = build_searcher(yaml.safe_load((conf_dir() / "searcher" / f"{name}.yaml").read_text()))
    problem = Problem.create(12, 4)
    loss = rugged_loss(problem, seed=0)
    assert drive(searcher, problem, loss, seed=1)[1] != drive(searcher, problem, loss, seed=2)[1]


def test_one_shot_removes_what_could_not_be_ablated_last():
    problem = Problem.create(6, 5)
    found, _ = drive(OneShotSearcher(), problem, lambda mask: float("nan") if mask in problem.singles[1:4] else 1.0)
    assert found == Mask.of(0, 1, 2, 4, 5)


def test_one_shot_tells_why_its_mask_has_no_loss():
    with pytest.raises(EvaluationError, match="the loss is nan"):
        drive(OneShotSearcher(), Problem.create(6, 3), lambda mask: float("nan") if len(mask) > 1 else 1.0)


def n_evaluations(searcher, problem):
    """How many masks a search has to evaluate."""
    _, rounds = drive(searcher, problem, rugged_loss(problem, seed=0))
    return len({mask for proposed in rounds for mask in proposed.masks})


@pytest.mark.parametrize(
    ("searcher", "protect", "evaluations"),
    [
        (OneShotSearcher(), [], 32 + 1),  # the ablations, and the mask they add up to
        (BeamSearcher(width=1), [], 203),
        (BeamSearcher(width=1), [0, -1], 189),  # SLEB's barriers
    ],
)
def test_evaluations_at_32_layers_remove_7(searcher, protect, evaluations):
    assert n_evaluations(searcher, Problem.create(32, 7, protect)) == evaluations


def test_beam_of_five_at_32_layers_remove_7():
    assert n_evaluations(BeamSearcher(width=5), Problem.create(32, 7)) <= 887


def test_a_wide_beam_is_exhaustive():
    problem = Problem.create(8, 3)
    loss = rugged_loss(problem, seed=11)
    found = run_searcher(BeamSearcher(width=100), problem, 0, ToyOracle(problem, loss))
    assert found == min((Mask.of(*layers) for layers in combinations(range(8), 3)), key=loss)


def test_greedy_is_the_plain_loop():
    problem = Problem.create(10, 4, [0])
    loss = rugged_loss(problem, seed=12)
    removed: list[int] = []
    for _ in range(4):
        left = [layer for layer in problem.free if layer not in removed]
        removed.append(min(left, key=lambda layer: loss(Mask.of(*removed, layer))))
    found = run_searcher(BeamSearcher(width=1), problem, 0, ToyOracle(problem, loss))
    assert found == Mask.of(*removed)


def test_ties_are_broken_by_mask_order():
    found, _ = drive(BeamSearcher(width=2), Problem.create(6, 2), lambda mask: 1.0)
    assert found == Mask.of(0, 1)


def test_illegal_masks_are_the_searchers_fault():
    class Rogue(Searcher):
        def search(self, problem, rng):
            yield Round([Mask.of(0)])
            return Mask.of(0)

    problem = Problem.create(4, 1, protect=[0])
    with pytest.raises(ContractError, match=r"Rogue proposed \{0\}"):
        run_searcher(Rogue(), problem, 0, ToyOracle(problem, additive_loss(problem, 0)))


def test_an_unscored_result_is_the_searchers_fault():
    class Guess(Searcher):
        def search(self, problem, rng):
            yield Round([Mask.of(1)])
            return Mask.of(2)

    problem = Problem.create(4, 1)
    with pytest.raises(ContractError, match="without a score"):
        run_searcher(Guess(), problem, 0, ToyOracle(problem, additive_loss(problem, 0)))


def test_a_round_of_failures_ends_the_search_with_the_cause():
    with pytest.raises(EvaluationError, match="the loss is nan"):
        drive(BeamSearcher(1), Problem(4, 1), lambda mask: float("nan"))


def test_a_loss_that_is_not_finite_is_no_score():
    for loss in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"the loss of \{0\} is (nan|inf); name the mask in `failed`"):
            Scores({Mask.of(0): loss})


def test_a_searcher_without_search_cannot_be_made():
    class Misnamed(Searcher):
        def serach(self, problem, rng):
            yield Round(problem.singles)

    with pytest.raises(TypeError, match="abstract method '?search'?"):
        Misnamed()  # type: ignore[abstract]


def test_options_are_checked():
    with pytest.raises(UserError, match=r"searcher.width=0 keeps no mask; use 1 \(greedy\) or more"):
        BeamSearcher(width=0)
