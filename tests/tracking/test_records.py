import csv
import io
import json
from dataclasses import replace

from raysearch.mask import Mask
from raysearch.testing.tracker_suite import greedy_search
from raysearch.tracking import records
from raysearch.tracking.base import Trial

INF = float("inf")


def test_config_is_flattened_to_dotted_keys():
    flat = records.flatten(
        {"searcher": {"name": "beam", "width": 5}, "protect": [0, -1], "x": None, "on": True, "e": {}}
    )
    assert flat == {
        "searcher.name": "beam",
        "searcher.width": "5",
        "protect": "[0, -1]",
        "x": "null",
        "on": "true",
        "e": "{}",
    }


def test_what_mlflow_refuses_is_clipped_or_replaced():
    flat = records.flatten({"a@b": {"c" * 300: "x" * 10_000}})
    [(key, value)] = flat.items()
    assert len(key) == records.MAX_KEY and key.startswith("a_b.ccc")
    assert len(value) == records.MAX_PARAM and value.endswith("x…")


def test_searches_are_filtered_by_the_choice_of_each_group():
    tags = records.search_tags(greedy_search().header)
    assert tags["raysearch.searcher"] == "greedy"
    assert tags["raysearch.data"] == "wikitext"
    assert tags["raysearch.model"] == "tiny"
    assert "raysearch.cluster" not in tags, "where a search ran says nothing about what it found"
    assert tags["raysearch.fingerprint.model"] == "m" * 16


def test_a_trial_reads_as_its_round_and_mask():
    trial = Trial(7, 2, Mask.of(25, 21), 3.0, 0.2, None, answered=True)
    assert records.trial_name(trial) == "r02 {21,25}"
    tags = records.trial_tags(trial, "parent")
    assert tags["raysearch.removed"] == "{21,25}"
    assert tags["raysearch.answered_by_ledger"] == "true"
    assert "raysearch.not_finite" not in tags and "raysearch.failure" not in tags


def test_infinite_values_are_named_in_a_tag():
    trial = Trial(7, 2, Mask.of(25), 800.0, 797.0, None, answered=False)
    assert records.trial_tags(trial, "parent")["raysearch.not_finite"] == "perplexity"


def test_csv_has_a_line_per_trial():
    trials = [
        Trial(0, 0, Mask(), 0.0, 0.0, None, answered=True),
        Trial(1, 1, Mask.of(1, 2), None, None, 'said "no",\ntwice', answered=False),
    ]
    dense, failed = csv.DictReader(io.StringIO(records.trials_csv(trials)))
    assert dense == {
        **dict.fromkeys(records.TRIALS_CSV_COLUMNS, ""),
        **{"index": "0", "round": "0", "removed": "{}", "n_removed": "0", "loss": "0.0", "perplexity": "1.0"},
        **{"delta": "0.0", "answered": "true"},
    }
    assert failed["removed"] == "{1,2}" and failed["loss"] == "" and failed["failure"] == 'said "no",\ntwice'


def test_a_result_without_an_order_has_no_such_tag():
    result = greedy_search().result
    assert "raysearch.removal_order" in records.result_tags(result)
    assert "raysearch.removal_order" not in records.result_tags(replace(result, removal_order=None))


def test_remarks_are_metrics_charts_and_tags_within_the_limits_of_mlflow():
    result = greedy_search().result
    remarks: dict[str, float | str | list[float]] = {
        "gap": 1,
        "scores": [0.5] * 2000,
        "why": "x" * 10_000,
        "n" * 300: 2.0,
    }
    odd = replace(result, remarks=remarks)
    assert records.result_metrics(odd)["remark.gap"] == 1
    assert all(len(key) <= records.MAX_KEY for key in records.result_metrics(odd))
    series = records.result_series(odd)
    assert series["remark.scores"][:2] == [(0, 0.5), (1, 0.5)] and len(series["remark.scores"]) == records.MAX_POINTS
    assert series["path_loss"][-1] == (3, result.loss)
    assert len(records.result_tags(odd)["raysearch.remark.why"]) == records.MAX_TAG


def test_a_result_is_json_whatever_its_numbers():
    result = greedy_search().result
    odd = replace(result, loss=800.0, remarks={"gap": INF, "scores": [1.0, INF], "why": "so"})
    value = json.loads(json.dumps(odd.as_json(), allow_nan=False))
    assert value["perplexity"] is None and value["remarks"] == {"gap": None, "scores": [1.0, None], "why": "so"}
    assert [entry["n_removed"] for entry in value["path"]] == [1, 2, 3]
    assert value["path"][-1]["removed"] == list(result.removed) and value["path"][-1]["loss"] == result.loss
    assert value["searcher_seconds"] == 0.25 and value["fingerprints"]["model"] == "m" * 16
