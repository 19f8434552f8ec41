"""One-shot pruning."""

from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.searchers.one_shot import OneShotSearcher
from raysearch.testing.searcher_suite import drive


def test_one_shot_removes_what_could_not_be_ablated_last():
    problem = Problem.create(6, 5)
    found, _ = drive(OneShotSearcher(), problem, lambda mask: float("nan") if mask in problem.singles[1:4] else 1.0)
    assert found == Mask.of(0, 1, 2, 4, 5)
