"""Exact tests of paired values: McNemar's of right and wrong answers, and Wilcoxon's signed ranks."""

from __future__ import annotations

from functools import cache
from typing import Literal

import numpy as np
import numpy.typing as npt


@cache  # a call takes half a millisecond, and screening needs the same few numbers again and again
def mcnemar_p(only_first: int, only_second: int, alternative: Literal["two-sided", "greater"] = "two-sided") -> float:
    """Return the p of the exact McNemar test, which is the sign test over the items that only one side has right.

    Args:
        only_first: The items that only the first side has right.
        only_second: The items that only the second side has right.
        alternative: ``greater`` to test only whether the first side has more items right.

    Returns:
        The p value; 1 if the sides differ in no item.
    """
    from scipy.stats import binomtest

    n_different = only_first + only_second
    return float(binomtest(only_first, n_different, alternative=alternative).pvalue) if n_different else 1.0


def signed_rank_p(gaps: npt.NDArray[np.float64]) -> float:
    """Return the two-sided p of Wilcoxon's signed ranks over all 2^n signs; equal sizes share the mean of their ranks.

    The exact test of ``scipy.stats.wilcoxon`` has no ties, or enumerates all signs. Here the signs are counted by the
    sum of their ranks, of which there are few.

    Args:
        gaps: Differences other than 0, [n].
    """
    from scipy.stats import rankdata

    ranks = np.rint(2 * rankdata(np.abs(gaps))).astype(int)  # whole numbers, so few sums are possible
    shares = np.ones(1)  # of all signs, by the sum of the ranks of positive differences
    for rank in ranks:
        shares = (np.pad(shares, (0, rank)) + np.pad(shares, (rank, 0))) / 2
    middle = ranks.sum() / 2
    is_as_far = np.abs(np.arange(len(shares)) - middle) >= abs(ranks[gaps > 0].sum() - middle)
    return float(shares[is_as_far].sum())
