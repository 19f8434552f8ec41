"""A search comes back from its record as it was, and can be told to a tracker again."""

from __future__ import annotations

import json
import math
from dataclasses import replace

from matplotlib.text import Text

from raysearch.core.json import from_json, to_json
from raysearch.core.mask import Mask
from raysearch.search.result import SearchResult, in_brief
from raysearch.testing.tracker_suite import ACCURACY, KL, greedy_search


def kept(search: SearchResult) -> SearchResult:
    """The search after it was in the ledger."""
    return from_json(SearchResult, to_json(search))


def test_all_of_a_search_comes_back() -> None:
    for measure in (ACCURACY, KL):
        search = replace(greedy_search(measure=measure), labels={"searcher": "greedy", "remove": "3"}, parent="ab12")
        parted = tuple(replace(trial, parts={"kl on c4": 0.1 + 0.2}) for trial in search.trials)
        search = replace(search, trials=parted, pool={"units_redone": 0}, statistics=("block_influence",))
        assert kept(search) == search
        assert kept(search).by_round == search.by_round and kept(search).began == search.ended - search.seconds


def test_what_json_cannot_say_comes_back_as_no_number() -> None:
    search = greedy_search(4, 1)
    failed = replace(search.trials[-1], loss=None, delta=None, failure="out of memory")
    summary = replace(search.rounds[0], round_best=Mask.of(2), best_loss=None)
    again = kept(
        replace(
            search,
            remarks={"gap": math.inf, "by layer": [1.0, math.nan], "solver": "proven"},
            removal_order=None,
            trials=(*search.trials[:-1], failed),
            rounds=(summary,),
        )
    )
    assert again.by_round == (((*search.trials[:-1], failed), summary),)
    assert again.removal_order is None and again.remarks["solver"] == "proven"
    gap, numbers = again.remarks["gap"], again.remarks["by layer"]
    assert isinstance(gap, float) and math.isnan(gap)
    assert isinstance(numbers, list) and numbers[0] == 1.0 and math.isnan(numbers[1])


def test_losses_come_back_bit_for_bit() -> None:
    search = greedy_search(n_layers=12, n_remove=4)
    assert [trial.loss.hex() for trial in kept(search).trials if trial.loss] == [
        trial.loss.hex() for trial in search.trials if trial.loss
    ]


def test_a_result_in_brief_is_json_without_what_it_is_made_of() -> None:
    value = in_brief(replace(greedy_search(), loss=math.inf))
    assert not {"trials", "rounds", "config", "choices"} & {*value}
    assert json.loads(json.dumps(value, allow_nan=False))["loss"] is None


def test_the_best_of_each_size_is_that_of_the_result_for_its_own() -> None:
    search = greedy_search()
    other = next(trial for trial in search.trials if len(trial.mask) == 3 and trial.mask != search.mask)
    found = replace(search, removed=other.mask.layers)
    best = found.best_by_size
    assert [*best] == [1, 2, 3] and best[3] == other and best[2] == search.path[1]
    assert found.path[-1] == other and in_brief(found)["path"][-1]["removed"] == list(other.mask)
    shown = found.plot.masks()[1].get_figure()
    assert shown is not None and f"{other.loss:.3f}" in {text.get_text() for text in shown.findobj(Text)}
