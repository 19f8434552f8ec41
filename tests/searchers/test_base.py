"""The contract of a searcher."""

import pytest

from raysearch.core.mask import Mask
from raysearch.errors import EvaluationError
from raysearch.searchers.base import Accepted, Dropped, Failed, Loss, Outcome, Round, Scores, Searcher


def test_a_loss_is_finite():
    for value in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"a loss is (nan|inf), which is not finite; use `Failed`"):
            Loss(value)


def test_the_error_for_a_mask_without_a_loss_names_the_cause():
    failed, dropped, accepted = map(Mask.of, range(3))
    outcomes: dict[Mask, Outcome] = {
        failed: Failed("the loss is nan"),
        dropped: Dropped(3.5),
        accepted: Accepted(1.5),
    }
    scores = Scores(Round([*outcomes]), outcomes)
    with pytest.raises(EvaluationError, match=r"^\{0\} could not be evaluated: the loss is nan$"):
        scores[failed]
    for mask in (dropped, accepted):
        with pytest.raises(ValueError, match=rf"^the loss of \{{{mask.layers[0]}\}} is not known: its Round let"):
            scores[mask]


def test_a_searcher_without_search_cannot_be_made():
    class Misnamed(Searcher):
        def serach(self, problem, rng):
            yield Round(problem.singles)

    with pytest.raises(TypeError, match="abstract method '?search'?"):
        Misnamed()  # type: ignore[abstract]
