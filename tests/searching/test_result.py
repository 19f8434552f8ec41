"""A search comes back from its record as it was, and can be told to a tracker again."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from matplotlib.figure import Figure

from raysearch.core.json import from_json, to_json
from raysearch.core.mask import Mask
from raysearch.core.measure import PERPLEXITY, Measure
from raysearch.searching.result import LayerTokens, SearchResult, in_brief
from raysearch.testing.tracker_suite import ACCURACY, KL, MARGIN
from tests.searching.test_figures import texts_of
from tests.tracking.simulated import greedy_search


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


def test_a_result_in_brief_is_json_whatever_its_numbers_without_what_it_is_made_of() -> None:
    result = greedy_search()
    odd = replace(result, loss=math.inf, remarks={"gap": math.inf, "scores": [1.0, math.inf], "why": "so"})
    value = json.loads(json.dumps(in_brief(odd), allow_nan=False))
    assert not {"trials", "rounds", "config", "choices"} & {*value}
    assert value["loss"] is value["perplexity"] is None
    assert value["remarks"] == {"gap": None, "scores": [1.0, None], "why": "so"}
    assert [entry["n_removed"] for entry in value["path"]] == [1, 2, 3]
    assert value["path"][-1]["removed"] == list(result.removed) and value["path"][-1]["loss"] == result.loss
    assert value["searcher_seconds"] == 0.25 and value["fingerprints"]["model"] == "m" * 16


@pytest.mark.parametrize("measure", [PERPLEXITY, MARGIN, ACCURACY, KL], ids=lambda measure: str(measure.readout))
def test_a_result_says_what_its_losses_are_counted_in(measure: Measure) -> None:
    result = replace(greedy_search(measure=measure), layer_tokens=LayerTokens(3, 4, True))
    value = json.loads(json.dumps(in_brief(result)))
    assert Measure(**value["measure"]) == measure
    assert (value["n_tokens"], value["n_samples"]) == (8192, 64)
    assert value["layer_tokens"] == {"computed": 3, "by_row": 4, "packed": True}
    assert value["data"] == list(result.data)
    if measure.readout is None:
        assert not {"perplexity", "None"} & {*value, *value["path"][0]}
    else:
        assert value[measure.readout] == result.readout == measure.read(result.loss)
        assert value[f"dense_{measure.readout}"] == result.dense_readout == measure.read(result.dense_loss)
        assert [entry[measure.readout] for entry in value["path"]] == [measure.read(e["loss"]) for e in value["path"]]


def test_the_best_of_each_size_is_that_of_the_result_for_its_own() -> None:
    search = greedy_search()
    other = next(trial for trial in search.trials if len(trial.mask) == 3 and trial.mask != search.mask)
    found = replace(search, removed=other.mask.layers)
    best = found.best_by_size
    assert [*best] == [1, 2, 3] and best[3] == other and best[2] == search.path[1]
    assert found.path[-1] == other and in_brief(found)["path"][-1]["removed"] == list(other.mask)
    found.plot.masks(figure := Figure(layout="constrained"))
    assert f"{other.loss:.3f}" in texts_of(figure)
