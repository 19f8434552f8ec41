"""The contract of a searcher."""

import pytest

from raysearch.core.mask import Mask
from raysearch.errors import EvaluationError
from raysearch.searchers.base import Round, Scores, Searcher


def test_a_loss_that_is_not_finite_is_no_score():
    for loss in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"the loss of \{0\} is (nan|inf); name the mask in `failed`"):
            Scores({Mask.of(0): loss})


def test_the_error_for_a_mask_without_a_loss_names_the_cause():
    failed, screened, accepted = map(Mask.of, range(3))
    scores = Scores({}, failed={failed: "the loss is nan"}, screened={screened: 3.5}, accepted=frozenset({accepted}))
    with pytest.raises(EvaluationError, match=r"^\{0\} could not be evaluated: the loss is nan$"):
        scores[failed]
    for mask in (screened, accepted):
        with pytest.raises(ValueError, match=rf"^the loss of \{{{mask.layers[0]}\}} is not known: its Round let"):
            scores[mask]


def test_a_searcher_without_search_cannot_be_made():
    class Misnamed(Searcher):
        def serach(self, problem, rng):
            yield Round(problem.singles)

    with pytest.raises(TypeError, match="abstract method '?search'?"):
        Misnamed()  # type: ignore[abstract]
