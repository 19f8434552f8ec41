"""The contract of a searcher."""

import pytest

from raysearch.core.mask import Mask
from raysearch.searchers.base import Round, Scores, Searcher


def test_a_loss_that_is_not_finite_is_no_score():
    for loss in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"the loss of \{0\} is (nan|inf); name the mask in `failed`"):
            Scores({Mask.of(0): loss})


def test_a_searcher_without_search_cannot_be_made():
    class Misnamed(Searcher):
        def serach(self, problem, rng):
            yield Round(problem.singles)

    with pytest.raises(TypeError, match="abstract method '?search'?"):
        Misnamed()  # type: ignore[abstract]
