"""What a search told comes back from the ledger's record as it was."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from raysearch.core.mask import Mask
from raysearch.core.measure import Measure
from raysearch.search.history import SearchHistory, as_record, read_record
from raysearch.testing.tracker_suite import ACCURACY, KL, greedy_search


def kept(search: SearchHistory) -> SearchHistory:
    """The search after it was in the ledger."""
    record = json.loads(json.dumps(as_record(search.header, search.result)))
    return read_record({**search.header.config, "choices": search.header.choices}, record)[0]


@pytest.mark.parametrize("measure", [ACCURACY, KL])
def test_all_that_was_told_is_told_again(measure: Measure) -> None:
    told = greedy_search(measure=measure)
    labels = {"searcher": "greedy", "remove": "3"}
    told = replace(told, header=replace(told.header, labels=labels, parent="ab12"))
    again = kept(told)
    assert replace(again.header, config=told.header.config) == told.header
    assert again.rounds == told.rounds
    assert replace(again.result, trials=(), rounds=()) == replace(told.result, trials=(), rounds=(), statistics=[])


def test_what_json_cannot_say_is_told_as_no_number() -> None:
    told = greedy_search(4, 1)
    failed = replace(told.trials[-1], loss=None, delta=None, failure="out of memory")
    summary = replace(told.rounds[0][1], round_best=Mask.of(2), best_loss=None)
    result = replace(
        told.result,
        remarks={"gap": math.inf, "by layer": [1.0, math.nan], "solver": "proven"},
        removal_order=None,
        trials=(*told.trials[:-1], failed),
        rounds=(summary,),
    )
    again = kept(replace(told, result=result))
    assert again.rounds == (((*told.trials[:-1], failed), summary),)
    assert again.result.removal_order is None and again.result.remarks["solver"] == "proven"
    numbers = again.result.remarks["by layer"]
    assert isinstance(numbers, list) and numbers[0] == 1.0 and math.isnan(numbers[1])


def test_when_it_began_is_known() -> None:
    search = greedy_search()
    record = as_record(search.header, search.result)
    config = {"choices": search.header.choices}
    assert read_record(config, record)[1] == record["told"]["ended"] - search.result.seconds
