"""The end of a search by budget, and its recommendation."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from raysearch.core.json import from_json, to_json
from raysearch.core.kv_cache import KvCache
from raysearch.core.mask import Mask
from raysearch.core.measure import PERPLEXITY
from raysearch.core.problem import Problem
from raysearch.core.site import Sites
from raysearch.ledger.ledger import Ledger
from raysearch.searching.recommend import BudgetedSearch, facts_of, kv_memory_of, recommend
from raysearch.searching.recommendation import Budget, Recommendation
from tests.tracking.simulated import greedy_search


def test_a_first_round_of_failures_spends_no_budget() -> None:
    nothing: Any = SimpleNamespace(trials=[])
    search = BudgetedSearch(Budget.parse(["budget.loss=1"]), Problem.create(4, 3), nothing, nothing, lambda *_: {})
    assert search.mask_at_end() is None, "the next request raises the cause"


def test_an_infinite_perplexity_is_recorded_and_read(ledger: Ledger) -> None:
    search = replace(greedy_search(4, 1), config={"remove": 1}, delta_error=None)
    ruined = replace(search.trials[1], loss=800.0)
    search = replace(search, loss=800.0, removed=ruined.mask.layers, trials=(search.trials[0], ruined))
    recommendation = recommend(search, Budget(loss=1000.0), ledger)
    assert recommendation.sizes[0].readout == float("inf")
    assert from_json(Recommendation, to_json(recommendation)).sizes[0].readout == float("inf")


def test_a_change_that_is_reached_exactly_is_no_miss() -> None:
    mask = Mask.of(0, 1, 2)
    kv_memory = kv_memory_of(mask, KvCache((7,) * 30, n_tokens=1, n_sequences=1), Sites.of_equal_layers(30))
    assert kv_memory.change == pytest.approx(-0.1)
    for limit, misses in (("-10%", ()), ("-10.01%", ("kv_memory",)), ("-9%", ())):
        budget = Budget.parse([f"budget.kv_memory={limit}"])
        assert facts_of(mask, 1.0, 1.0, PERPLEXITY, budget, kv_memory=kv_memory).misses == misses


def test_a_recommendation_is_a_sentence_and_a_table_in_a_notebook(ledger: Ledger) -> None:
    search = replace(greedy_search(6, 3), config={"remove": "1..3"}, delta_errors={1: 0.01, 2: 0.01, 3: 0.01})
    rises = [trial.loss - search.dense_loss for trial in search.path if trial.loss is not None]
    recommendation = recommend(search, Budget(loss=rises[1] + 0.01), ledger)
    assert (recommendation.n_removed, recommendation.sizes[1].unsure, recommendation.sizes[2].misses) == (
        1,
        ("loss",),
        ("loss",),
    )
    assert str(recommendation).startswith(f"{search.search_id}, budget.loss=")
    assert len(str(recommendation)) < 400
    assert "with 2 it keeps to budget.loss, but not beyond the error: the loss rises by" in str(recommendation)
    assert str(recommendation).endswith("take more samples (data.samples)")
    html = recommendation._repr_html_()
    assert f"<td>1</td><td>{recommendation.removed}</td>" in html
    assert "recommended" in html
    assert "not loss" in html
