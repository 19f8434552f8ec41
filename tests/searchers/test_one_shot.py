"""One-shot pruning."""

from typing import get_args

from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.searchers.base import Ties
from raysearch.searchers.one_shot import OneShotSearcher
from raysearch.testing.searcher_suite import drive

TIES = get_args(Ties)


def test_one_shot_removes_layers_of_unknown_cost_last():
    problem = Problem.create(6, 5)
    mask, _ = drive(OneShotSearcher(), problem, lambda mask: float("nan") if mask in problem.singles[1:4] else 1.0)
    assert mask == Mask.of(0, 1, 2, 4, 5)


def test_the_earlier_or_the_later_of_equal_layers_is_removed():
    problem = Problem.create(6, 3)
    costs = dict(zip(problem.singles, [1.0, 2.0, 2.0, 0.5, 2.0, 3.0], strict=True))
    masks = {ties: drive(OneShotSearcher(ties), problem, lambda mask: costs.get(mask, 9.0))[0] for ties in TIES}
    assert masks == {"earlier": Mask.of(0, 1, 3), "later": Mask.of(0, 3, 4)}
