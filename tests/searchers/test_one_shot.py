"""One-shot pruning."""

import pytest

from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.errors import EvaluationError
from raysearch.searchers.one_shot import OneShotSearcher
from raysearch.testing.searcher_suite import drive, rugged_loss


def test_evaluations_at_32_layers_remove_7():
    problem = Problem.create(32, 7)
    _, rounds = drive(OneShotSearcher(), problem, rugged_loss(problem, 0))
    assert [len(proposed.masks) for proposed in rounds] == [32, 1]  # the ablations, and the mask they add up to


def test_one_shot_removes_what_could_not_be_ablated_last():
    problem = Problem.create(6, 5)
    found, _ = drive(OneShotSearcher(), problem, lambda mask: float("nan") if mask in problem.singles[1:4] else 1.0)
    assert found == Mask.of(0, 1, 2, 4, 5)


def test_one_shot_tells_why_its_mask_has_no_loss():
    with pytest.raises(EvaluationError, match="the loss is nan"):
        drive(OneShotSearcher(), Problem.create(6, 3), lambda mask: float("nan") if len(mask) > 1 else 1.0)
