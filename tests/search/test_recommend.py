"""Where a search by budget ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from raysearch.core.problem import Problem
from raysearch.search.recommend import BudgetedSearch
from raysearch.search.recommendation import Budget


def test_a_first_round_in_which_all_fails_spends_no_budget() -> None:
    nothing: Any = SimpleNamespace(trials=[])
    search = BudgetedSearch(Budget.parse(["budget.loss=1"]), Problem(4, 3), nothing, nothing, lambda *_: {})
    assert search.found() is None, "the next request tells the cause"
