from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar

from raysearch.stats.paired import mcnemar_p, signed_rank_p


@pytest.mark.parametrize(("first", "second"), [(0, 1), (3, 3), (9, 2), (2, 9), (40, 61)])
def test_mcnemar_is_that_of_statsmodels(first: int, second: int):
    theirs = mcnemar([[0, first], [second, 0]], exact=True).pvalue
    assert mcnemar_p(first, second) == pytest.approx(theirs)


def test_mcnemar_of_one_side_is_a_tail_of_the_binomial():
    assert mcnemar_p(9, 2, "greater") == pytest.approx(stats.binom.sf(8, 11, 0.5))
    assert mcnemar_p(0, 4, "greater") == 1.0


def test_no_difference_is_no_evidence():
    assert mcnemar_p(0, 0) == mcnemar_p(0, 0, "greater") == 1.0


@pytest.mark.parametrize("gaps", [[1, 1, 2, 3, 4], [1, -1, 2, 2, 2, -5], [3, 3, 3], [-1], []])
def test_signed_ranks_are_exact_where_sizes_are_equal(gaps: list[float]):
    ranks = stats.rankdata(np.abs(gaps))
    sums = np.array([ranks[np.array(signs, bool)].sum() for signs in itertools.product((0, 1), repeat=len(gaps))])
    far = np.abs(sums - ranks.sum() / 2) >= abs(ranks[np.array(gaps) > 0].sum() - ranks.sum() / 2)
    assert signed_rank_p(np.array(gaps, float)) == pytest.approx(far.mean())
