"""Bayesian optimisation: the number of its evaluations, its first masks, and the compression of losses."""

import numpy as np
import pytest

from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.searchers import bayesian
from raysearch.searchers.bayesian import BayesianSearcher, Surrogate, compress
from raysearch.searchers.toolbox.subsets import all_masks
from raysearch.testing.searcher_suite import additive_loss, rugged_loss
from tests.searchers.toys import cheapest, rounds_of

PROBLEM = Problem.create(32, 7)


def test_evaluations_at_32_layers_remove_7():
    _, rounds = rounds_of(BayesianSearcher(trials=80), PROBLEM, rugged_loss(PROBLEM, 0))
    assert [len(masks) for masks in rounds] == [32, 11, *[1] * 69]  # 80 trials: one-shot, 10 random ones and 69
    solutions = [mask for masks in rounds[1:] for mask in masks]
    assert len(set(solutions)) == 80
    assert all(PROBLEM.is_solution(mask) for mask in solutions)


def test_batches_share_the_trials():
    _, rounds = rounds_of(BayesianSearcher(trials=40, batch=8, prior="none"), PROBLEM, additive_loss(PROBLEM, 0))
    assert [len(masks) for masks in rounds] == [10, 8, 8, 8, 6]
    assert len({mask for masks in rounds for mask in masks}) == 40


def test_block_influence_saves_the_ablations():
    _, rounds = rounds_of(BayesianSearcher(trials=30, prior="influence"), PROBLEM, rugged_loss(PROBLEM, 0))
    assert [len(masks) for masks in rounds] == [11, *[1] * 19]


@pytest.mark.parametrize("prior", ["ablation", "influence"])
def test_the_cheapest_layers_can_be_left_out_of_the_start(prior):
    loss = additive_loss(PROBLEM, 1)
    _, rounds = rounds_of(BayesianSearcher(trials=12, prior=prior, cheapest=False), PROBLEM, loss)
    assert [len(masks) for masks in rounds[-3:]] == [10, 1, 1]
    assert cheapest(PROBLEM, loss) not in rounds[-3]


def test_compressed_losses_keep_their_order_and_lose_their_tail():
    losses = np.array([-0.5, -0.4, -0.3, 0.1, 2.0, 900.0, np.nan])
    compressed = compress(losses)
    assert compressed[0] == 0
    assert (np.diff(compressed[:6]) > 0).all()
    assert compressed[5] == compressed[6] < 12 * compressed[3]
    assert (compress(np.full(4, 2.5)) == 0).all()
    assert (compress(np.full(2, np.nan)) == 0).all()


def test_the_last_new_mask_is_found_however_many_starts_lead_to_known_ones(monkeypatch):
    problem = Problem.create(6, 3)
    new = Mask.of(3, 4, 5)
    surrogate = Surrogate(problem, np.zeros(6), scan=False)
    surrogate.learn({mask: float(len(mask & new)) for mask in all_masks(problem) if mask != new})
    far_from_new = Mask.of(0, 1, 2)
    starts = iter([*[far_from_new] * 3 * 1200, *[Mask.of(2, 4, 5)] * 3])
    monkeypatch.setattr(bayesian, "draw_mask", lambda problem, rng: next(starts))
    assert surrogate.propose(1, np.random.default_rng(0)) == [new]
