"""Where a search by budget ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raysearch.core.problem import Problem
from raysearch.errors import EvaluationError
from raysearch.search.auto import BudgetedSearch
from raysearch.search.recommendation import Budget


def test_a_first_round_in_which_all_fails_ends_with_its_cause() -> None:
    def rounds() -> Any:
        yield "summary"
        raise EvaluationError("no mask of the round could be evaluated: the loss is nan")

    nothing: Any = SimpleNamespace(trials=[])
    search = BudgetedSearch(Budget.parse(["budget.loss=1"]), Problem(4, 3), nothing, nothing, lambda *_: {})
    following = search.follow(rounds())
    next(following)
    with pytest.raises(EvaluationError, match="the loss is nan"):
        next(following)
