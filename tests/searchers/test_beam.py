"""Beam and greedy search."""

import pytest

from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.searchers.beam import BeamSearcher
from raysearch.testing.searcher_suite import drive, rugged_loss
from tests.searchers.toys import ranked


def n_evaluations(searcher, problem):
    """The number of masks that a search evaluates."""
    _, rounds = drive(searcher, problem, rugged_loss(problem, seed=0))
    return len({mask for proposed in rounds for mask in proposed.masks})


@pytest.mark.parametrize(("protect", "evaluations"), [([], 203), ([0, -1], 189)])  # the second: SLEB's barriers
def test_greedy_evaluations_at_32_layers_remove_7(protect, evaluations):
    assert n_evaluations(BeamSearcher(width=1), Problem.create(32, 7, protect)) == evaluations


def test_beam_of_five_at_32_layers_remove_7():
    assert n_evaluations(BeamSearcher(width=5), Problem.create(32, 7)) <= 887


def test_a_beam_passes_through_every_size():
    loss = rugged_loss(Problem.create(7, 4, protect=[0]), seed=3)

    def masks(size):
        _, rounds = drive(BeamSearcher(width=2), Problem.create(7, size, protect=[0]), loss)
        return [mask for proposed in rounds for mask in proposed.masks]

    for size in (2, 3):
        assert min((mask for mask in masks(4) if len(mask) == size), key=loss) == min(
            (mask for mask in masks(size) if len(mask) == size), key=loss
        )


def test_a_wide_beam_is_exhaustive():
    problem = Problem.create(8, 3)
    loss = rugged_loss(problem, seed=11)
    assert drive(BeamSearcher(width=100), problem, loss)[0] == ranked(problem, loss)[0]


def test_greedy_is_the_plain_loop():
    problem = Problem.create(10, 4, [0])
    loss = rugged_loss(problem, seed=12)
    removed: list[int] = []
    for _ in range(4):
        remaining = [layer for layer in problem.free if layer not in removed]
        removed.append(min(remaining, key=lambda layer: loss(Mask.of(*removed, layer))))
    assert drive(BeamSearcher(width=1), problem, loss)[0] == Mask.of(*removed)


def test_ties_are_broken_by_mask_order():
    mask, _ = drive(BeamSearcher(width=2), Problem.create(6, 2), lambda mask: 1.0)
    assert mask == Mask.of(0, 1)


@pytest.mark.parametrize("width", [1, 2])
def test_ties_can_go_to_the_later_layer(width):
    """As in algorithm 1 of "On the Limits of Layer Pruning". Only layers 1, 3 and 4 cost little."""
    problem = Problem.create(6, 2, protect=[0])
    mask, _ = drive(
        BeamSearcher(width, ties="later"), problem, lambda mask: float(len(mask) - len(mask & Mask.of(1, 3, 4)))
    )
    assert mask == Mask.of(3, 4)
