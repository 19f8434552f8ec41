"""A result is read from its record unchanged, and has a short form in JSON."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from matplotlib.figure import Figure

from raysearch.core.json import from_json, to_json
from raysearch.core.mask import Mask
from raysearch.core.measure import PERPLEXITY, Measure
from raysearch.searching.result import SearchResult, in_brief
from raysearch.searching.work import LayerTokens
from tests.figures.test_search import texts_of
from tests.tracking.simulated import greedy_search
from tests.tracking.tracker_suite import ACCURACY, KL, MARGIN


def recorded(search: SearchResult) -> SearchResult:
    """The search, written to JSON and read again, as by the ledger."""
    return from_json(SearchResult, to_json(search))


def test_a_result_is_read_from_its_record_unchanged() -> None:
    for measure in (ACCURACY, KL):
        search = replace(greedy_search(measure=measure), labels={"searcher": "greedy", "remove": "3"}, parent="ab12")
        trials = tuple(replace(trial, parts={"kl on c4": 0.1 + 0.2}) for trial in search.trials)
        work = replace(search.work, pool={"units_redone": 0})
        search = replace(search, work=work, trials=trials, statistics=("block_influence",))
        assert recorded(search) == search
        assert recorded(search).by_round == search.by_round
        assert recorded(search).work.began == search.work.ended - search.work.seconds


def test_infinite_numbers_are_read_as_nan() -> None:
    search = greedy_search(4, 1)
    failed = replace(search.trials[-1], loss=None, delta=None, failure="out of memory")
    summary = replace(search.rounds[0], round_best=Mask.of(2), best_loss=None)
    read = recorded(
        replace(
            search,
            remarks={"gap": math.inf, "by layer": [1.0, math.nan], "solver": "proven"},
            removal_order=None,
            trials=(*search.trials[:-1], failed),
            rounds=(summary,),
        )
    )
    assert read.by_round == (((*search.trials[:-1], failed), summary),)
    assert read.removal_order is None
    assert read.remarks["solver"] == "proven"
    gap = read.remarks["gap"]
    numbers = read.remarks["by layer"]
    assert isinstance(gap, float)
    assert math.isnan(gap)
    assert isinstance(numbers, list)
    assert numbers[0] == 1.0
    assert math.isnan(numbers[1])


def test_a_result_in_brief_is_valid_json_without_trials_and_configuration() -> None:
    result = greedy_search()
    odd = replace(result, loss=math.inf, remarks={"gap": math.inf, "scores": [1.0, math.inf], "why": "so"})
    value = json.loads(json.dumps(in_brief(odd), allow_nan=False))
    assert not {"trials", "rounds", "config", "choices"} & {*value}
    assert value["loss"] is value["perplexity"] is None
    assert value["remarks"] == {"gap": None, "scores": [1.0, None], "why": "so"}
    assert [entry["n_removed"] for entry in value["path"]] == [1, 2, 3]
    assert value["path"][-1]["removed"] == list(result.removed)
    assert value["path"][-1]["loss"] == result.loss
    assert value["searcher_seconds"] == 0.25
    assert value["fingerprints"]["model"] == "m" * 16


@pytest.mark.parametrize("measure", [PERPLEXITY, MARGIN, ACCURACY, KL], ids=lambda measure: str(measure.readout))
def test_a_result_in_brief_has_its_measure_and_readouts(measure: Measure) -> None:
    search = greedy_search(measure=measure)
    result = replace(search, work=replace(search.work, layer_tokens=LayerTokens(3, 4, True)))
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
        assert [entry[measure.readout] for entry in value["path"]] == [
            measure.read(entry["loss"]) for entry in value["path"]
        ]


def test_the_best_trial_of_the_results_size_is_that_of_the_result() -> None:
    search = greedy_search()
    worse = next(trial for trial in search.trials if len(trial.mask) == 3 and trial.mask != search.mask)
    result = replace(search, removed=worse.mask.layers)
    best = result.best_by_size
    assert [*best] == [1, 2, 3]
    assert best[3] == worse
    assert best[2] == search.path[1]
    assert result.path[-1] == worse
    assert in_brief(result)["path"][-1]["removed"] == list(worse.mask)
    result.plot.masks(figure := Figure(layout="constrained"))
    assert f"{worse.loss:.3f}" in texts_of(figure)
