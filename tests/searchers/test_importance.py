"""Importance: the layers of lowest score, for every criterion."""

from typing import get_args

from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.core.statistic import Statistic
from raysearch.searchers.base import Remark
from raysearch.searchers.importance import Criterion, ImportanceSearcher
from tests.searchers.toys import run_on


def test_the_free_layers_of_lowest_mean_score_are_removed():
    rows = [[0.0, 6.0, 2.0, 4.0, 9.0], [0.0, 2.0, 4.0, 0.0, 9.0]]  # means 0, 4, 3, 2, 9
    for criterion in get_args(Criterion):
        mask, oracle = run_on(ImportanceSearcher(criterion), Problem.create(5, 2, protect=[0]), rows)
        assert mask == Mask.of(2, 3)
        assert oracle.statistics == [Statistic(criterion)]
        assert oracle.remarks == [Remark(criterion, [0, 4, 3, 2, 9])]  # protected layers have a score too
