"""Nevergrad's optimizers as searchers: the contract for several of them, and the losses that they receive."""

import threading

import nevergrad
import numpy as np
import pytest

from raysearch.bridges.nevergrad import NevergradSearcher
from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.errors import UserError
from raysearch.testing.searcher_suite import SearcherSuite, rugged_loss
from tests.searchers.toys import rounds_of
from tests.sentences import Sentences

PROBLEM = Problem.create(32, 7)


class TestOptimizers(SearcherSuite):
    @pytest.fixture(autouse=True, params=["NGOpt", "DE", "OnePlusOne"])
    def _optimizer(self, request):
        self.optimizer = request.param
        self.trials = 40 if self.optimizer == "DE" else 24  # more than the first generation of any

    def make_searcher(self):
        return NevergradSearcher(self.optimizer, trials=self.trials, batch=4)


@pytest.mark.parametrize("batch", [1, 8])
def test_trials_are_distinct_masks(batch):
    _, rounds = rounds_of(NevergradSearcher(trials=60, batch=batch), PROBLEM, rugged_loss(PROBLEM, 0))
    assert len(rounds[0]) == 32
    assert max(len(masks) for masks in rounds[1:]) == batch
    solutions = [mask for masks in rounds[1:] for mask in masks]
    assert len(set(solutions)) == len(solutions) == 60


class Stub:
    """An optimizer that proposes the same masks again and again, and keeps the losses that it receives."""

    no_parallelization = False
    last: "Stub"
    masks = ((0, 1), (0, 1), (0, 2), (1, 2), (0, 3))

    def __init__(self, space, budget, num_workers):
        self.space = space
        self.budget = budget
        self.answers = []
        self.n_proposed = 0
        Stub.last = self

    def ask(self):
        mask = self.masks[self.n_proposed % len(self.masks)]
        self.n_proposed += 1
        return self.space.spawn_child(new_value=np.array([-1.0 if layer in mask else 1.0 for layer in range(4)]))

    def tell(self, point, loss):
        self.answers.append((tuple(np.flatnonzero(point.value < 0).tolist()), loss))


@pytest.fixture
def stub(monkeypatch):
    monkeypatch.setitem(nevergrad.optimizers.registry.data, "Stub", Stub)
    return lambda loss, **options: rounds_of(
        NevergradSearcher("Stub", prior="none", **options), Problem.create(4, 2), loss
    )


def test_a_repeated_mask_is_answered_with_its_known_loss(stub):
    mask, rounds = stub(lambda mask: float(sum(mask)), trials=5, batch=3)
    # Two points of the first round stand for one mask; only four of the six masks are ever proposed.
    assert rounds == [(Mask.of(0, 1), Mask.of(0, 2)), (Mask.of(1, 2), Mask.of(0, 3))]
    assert mask == Mask.of(0, 1)
    assert Stub.last.n_proposed == len(Stub.last.answers) == Stub.last.budget == 20 * 5
    assert Stub.last.answers[:4] == [((0, 1), 1), ((0, 1), 1), ((0, 2), 2), ((0, 1), 1)]


def test_a_failure_is_a_trial_with_the_worst_loss(stub):
    mask, rounds = stub(lambda mask: float("nan") if 1 in mask else float(sum(mask)), trials=4, batch=1)
    assert [str(mask) for masks in rounds for mask in masks] == ["{0,1}", "{0,2}", "{1,2}", "{0,3}"]
    assert mask == Mask.of(0, 2)
    assert Stub.last.answers == [((0, 1), 1e9), ((0, 1), 1e9), ((0, 2), 2), ((1, 2), 2), ((0, 3), 3)]


def test_an_error_of_nevergrad_is_reported(stub, monkeypatch, sentences: Sentences):
    def ask(self):
        raise ModuleNotFoundError("No module named 'nlopt'")

    monkeypatch.setattr(Stub, "ask", ask)
    with sentences.refused(UserError):
        stub(lambda mask: 0.0)


@pytest.mark.filterwarnings("ignore")  # the optimizer warns that it converges
def test_the_thread_of_an_optimizer_ends_with_the_search():
    before = set(threading.enumerate())
    rounds_of(NevergradSearcher("NelderMead", trials=20, batch=1), PROBLEM, rugged_loss(PROBLEM, 0))
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=10)
        assert not thread.is_alive()
