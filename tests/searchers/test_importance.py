"""Importance: the layers of lowest score, whatever scores them."""

from typing import get_args

import pytest

from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.core.statistic import Statistic
from raysearch.errors import EvaluationError, UserError
from raysearch.searchers.base import Remark
from raysearch.searchers.importance import Criterion, ImportanceSearcher
from raysearch.testing.searcher_suite import additive_loss
from tests.searchers.toys import rounds_of, run_on


def test_one_evaluation_at_32_layers_remove_7():
    problem = Problem.create(32, 7)
    for criterion in get_args(Criterion):
        _, rounds = rounds_of(ImportanceSearcher(criterion), problem, additive_loss(problem, 0))
        assert [len(masks) for masks in rounds] == [1]


def test_the_free_layers_of_lowest_mean_score_go():
    rows = [[0.0, 6.0, 2.0, 4.0, 9.0], [0.0, 2.0, 4.0, 0.0, 9.0]]  # means 0, 4, 3, 2, 9
    for criterion in get_args(Criterion):
        found, oracle = run_on(ImportanceSearcher(criterion), Problem.create(5, 2, protect=[0]), rows)
        assert found == Mask.of(2, 3)
        assert oracle.asked == [Statistic(criterion)]
        assert oracle.remarks == [Remark(criterion, [0, 4, 3, 2, 9])]  # protected layers have a score too


def test_ties_go_to_the_first_layers():
    found, _ = run_on(ImportanceSearcher("taylor"), Problem.create(5, 2, protect=[0]), [[1.0] * 5])
    assert found == Mask.of(1, 2)


def test_a_failure_is_reported():
    with pytest.raises(EvaluationError, match="the loss is nan"):
        run_on(ImportanceSearcher("taylor"), Problem.create(3, 1), [[1.0, 2.0, 3.0]], loss=lambda mask: float("nan"))


def test_options_are_checked():
    message = "searcher.criterion=size is unknown; choose one of: block_influence, magnitude_l1, magnitude_l2, taylor"
    with pytest.raises(UserError, match=message):
        ImportanceSearcher("size")  # type: ignore[arg-type]
