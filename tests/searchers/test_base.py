"""The contract of a searcher."""

import pytest

from raysearch.core.mask import Mask
from raysearch.errors import EvaluationError
from raysearch.searchers.base import Accepted, Dropped, Failed, Loss, Outcome, Round, Scores, Searcher
from tests.sentences import Sentences


def test_a_loss_is_finite(sentences: Sentences):
    for value in (float("nan"), float("inf")):
        with sentences.refused(ValueError, case=str(value)):
            Loss(value)


def test_the_error_for_a_mask_without_a_loss_names_the_cause(sentences: Sentences):
    failed, dropped, accepted = map(Mask.of, range(3))
    outcomes: dict[Mask, Outcome] = {
        failed: Failed("the loss is nan"),
        dropped: Dropped(3.5),
        accepted: Accepted(1.5),
    }
    scores = Scores(Round([*outcomes]), outcomes)
    with sentences.refused(EvaluationError):
        scores[failed]
    for mask in (dropped, accepted):
        with sentences.refused(ValueError):
            scores[mask]


def test_a_searcher_without_search_cannot_be_made():
    class Misnamed(Searcher):
        def serach(self, problem, rng):
            yield Round(problem.singles)

    with pytest.raises(TypeError, match="abstract method '?search'?"):
        Misnamed()  # type: ignore[abstract]
