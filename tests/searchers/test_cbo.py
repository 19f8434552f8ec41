"""Constrained binary optimisation: its evaluations, losses that it solves exactly, and failed pairs."""

import math
from itertools import combinations

import numpy as np
import pytest

from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.core.statistic import Statistic
from raysearch.errors import EvaluationError
from raysearch.searchers import cbo
from raysearch.searchers.base import Remark, Round
from raysearch.searchers.cbo import CboSearcher, gradient_model, pair_model, stands_out
from raysearch.searchers.toolbox.subsets import overlaps
from raysearch.searching.driver import run_searcher
from raysearch.testing.searcher_suite import ToyOracle, rugged_loss, toy_scores
from tests.searchers.toys import ranked, rounds_of, run_on
from tests.sentences import Sentences


def test_one_layer_needs_no_pairs():
    problem = Problem.create(12, 1)
    mask, rounds = rounds_of(CboSearcher(k=3), problem, rugged_loss(problem, 0))
    assert [len(masks) for masks in rounds] == [13, 3]
    assert mask == min(problem.singles, key=rugged_loss(problem, 0))


@pytest.mark.parametrize("protect", [[], [0, -1]])
def test_a_pairwise_loss_is_solved_exactly(protect):
    problem = Problem.create(16, 5, protect)
    for seed in range(5):
        loss = rugged_loss(problem, seed)
        shifted = lambda mask, loss=loss: 2.5 + loss(mask)  # noqa: E731 - the dense loss is not 0
        mask, rounds = rounds_of(CboSearcher(k=20), problem, shifted, seed)
        best = ranked(problem, loss)[:20]
        assert list(rounds[1]) == best, seed
        assert mask == best[0], seed


def test_the_best_of_the_low_states_is_returned_not_the_lowest():
    problem = Problem.create(8, 3)
    loss = rugged_loss(problem, 0)
    fourth = ranked(problem, loss)[3]
    mask, _ = rounds_of(CboSearcher(k=4), problem, lambda mask: loss(mask) - 100 * (mask == fourth))
    assert mask == fourth


def test_failed_pairs_are_not_removed_together():
    problem = Problem.create(12, 4)
    loss = rugged_loss(problem, 1)
    best = ranked(problem, loss)
    broken = Mask.of(*best[0].layers[:2])
    mask, rounds = rounds_of(CboSearcher(), problem, lambda mask: float("nan") if mask == broken else loss(mask))
    assert not any(set(broken) <= set(mask) for mask in rounds[1])
    assert mask == next(mask for mask in best if not set(broken) <= set(mask))


def test_the_model_is_the_loss_of_singles_and_pairs():
    problem = Problem.create(6, 3, protect=[2])
    loss = rugged_loss(problem, 2)
    singles_and_pairs = [problem.dense, *problem.singles, *map(Mask, combinations(problem.free, 2))]
    losses = {mask: 1.0 + loss(mask) for mask in singles_and_pairs}
    layers, model = pair_model(problem, toy_scores(Round(singles_and_pairs), losses.__getitem__))
    assert layers == [0, 1, 3, 4, 5]
    for i, j in combinations(range(5), 2):
        energy = model.linear[i] + model.linear[j] + model.pairs[i, j]
        assert energy == pytest.approx(loss(Mask.of(layers[i], layers[j])))


@pytest.mark.parametrize("remove", [1, 4])
@pytest.mark.parametrize("protect", [[], [0, 3]])
@pytest.mark.parametrize("first_order", [True, False])
def test_the_gradient_model_is_the_expansion_of_the_loss(first_order, protect, remove):
    problem = Problem.create(10, remove, protect)
    rows = np.random.default_rng(3).normal(0.3, 1.0, size=(7, 10))

    def change(mask):
        """-g x + x H x / 2, the mean over samples."""
        removed = rows[:, list(mask)].sum(axis=1)
        return float((0.5 * removed**2 - first_order * removed).mean())

    layers = problem.free
    model = gradient_model(rows[:, problem.free], first_order, overlaps(problem))
    for size in (1, 2, 5):
        for variables in combinations(range(len(layers)), size):
            bits = np.zeros((1, len(layers)))
            bits[0, list(variables)] = 1
            mask = Mask.of(*(layers[variable] for variable in variables))
            assert model.energies(bits)[0] == pytest.approx(change(mask))

    searcher = CboSearcher(k=6, couplings="gradient", first_order=first_order)
    mask, oracle = run_on(searcher, problem, rows, loss=change)
    best = ranked(problem, change)[:6]
    assert [proposed.masks for proposed in oracle.rounds] == [tuple(best)]
    assert mask == best[0]


@pytest.mark.parametrize(("first_order", "layer"), [(False, 1), (True, 0)])
def test_two_layers_by_hand(first_order, layer):
    # g = (2, 0) and H = ((5, -2), (-2, 4)). By the second order alone, layer 0 costs 2.5 and layer 1 costs 2. With the
    # first order, layer 0 costs 2.5 - 2.
    searcher = CboSearcher(k=1, couplings="gradient", first_order=first_order)
    mask, oracle = run_on(searcher, Problem.create(2, 1), [[1, 2], [3, -2]])
    assert mask == Mask.of(layer)
    assert oracle.statistics == [Statistic.GATE_GRADIENTS]
    assert oracle.remarks == [
        Remark("gate_gradient", [2, 0]),
        Remark("gate_fisher", [5, 4]),
        Remark("proven_states", 1),
        Remark("solver_gap", 0),
    ]


@pytest.mark.parametrize(
    ("shift", "n_samples", "keep"),
    [(0.0, 64, False), (0.5, 64, True), (0.5, 4, False), (0.0, 1, True)],
    ids=["vanish", "stand out", "are lost in noise", "one sample"],
)
def test_the_first_order_is_kept_if_gradients_do_not_vanish(shift, n_samples, keep):
    rows = np.random.default_rng(1).normal(size=(n_samples, 8)) + shift
    rows[:, 2] += 50.0  # protected, so it does not count
    problem = Problem.create(8, 3, protect=[2])
    mask, oracle = run_on(CboSearcher(k=1, couplings="gradient"), problem, rows)
    explicit, _ = run_on(CboSearcher(k=1, couplings="gradient", first_order=keep), problem, rows)
    assert Remark("first_order", "kept" if keep else "dropped") in oracle.remarks
    assert mask == explicit


def test_vanishing_gradients_seldom_stand_out():
    rng = np.random.default_rng(0)
    false_alarms = [stands_out(rng.standard_t(5, size=(32, 30))) for _ in range(2000)]
    assert np.mean(false_alarms) < 0.015


def test_the_solvers_result_is_recorded_even_if_it_runs_out_of_time(monkeypatch):
    problem = Problem.create(8, 3)
    for time_limit_s, proven, gap in ((60.0, 5, 0), (1e-9, 0, math.inf)):
        oracle = ToyOracle(problem, rugged_loss(problem, 0))
        run_searcher(CboSearcher(k=5, time_limit_s=time_limit_s), problem, 0, oracle)
        assert oracle.remarks == [Remark("proven_states", proven), Remark("solver_gap", gap)]
        monkeypatch.setattr(cbo, "_ENUMERABLE", 1)


@pytest.mark.parametrize(
    "fails",
    [
        lambda mask: len(mask) == 0,
        lambda mask: len(mask) == 1,
        lambda mask: len(mask) == 2,
        lambda mask: len(mask) == 3,
    ],
)
def test_a_search_that_cannot_continue_names_the_cause(fails, sentences: Sentences):
    problem = Problem.create(6, 3)
    with sentences.refused(EvaluationError):
        rounds_of(CboSearcher(), problem, lambda mask: float("nan") if fails(mask) else 1.0)
