import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest
from mlflow import MlflowClient

from raysearch.tracking.mlflow.ui import _links, serve_ui
from raysearch.tracking.options import MlflowStore
from tests.sentences import Sentences
from tests.tracking.conftest import Served, closed_port, get, start_ui
from tests.tracking.mlflow.test_tracker import SEARCH, record_search
from tests.tracking.recorded import Recorded


def test_stores_and_addresses_that_cannot_be_served_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sentences: Sentences
) -> None:
    (tmp_path / "mlflow.db").touch()
    # MLflow would try for minutes.
    hanging = {"uri": "mssql+pyodbc:///", "port": closed_port()}
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "mssql+pyodbc:///?odbc_connect=PWD%3Ds3cr3t")
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        cases = [
            {"folder": tmp_path / "new"},
            {"uri": "http://mlflow:5000"},
            hanging,
            {"port": port},
            {"host": "no.such.host.invalid"},
            {"port": 70000},
            {"port": 0},
            {"host": "x" * 99},
        ]
        sentences.hide(str(port), "busy port")
        sentences.hide(str(hanging["port"]), "closed port")
        sentences.hide(re.compile(r"(?<=of this machine \()[^)]+"), "cause")
        sentences.refused_each(lambda folder=tmp_path, uri=None, **at: serve_ui(folder, uri, **at), cases)


def test_a_server_that_fails_gives_its_exit_code(tables: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails = tmp_path / "python"
    fails.write_text("#!/bin/sh\nexit 3")
    fails.chmod(0o700)
    monkeypatch.setattr("sys.executable", str(fails))
    monkeypatch.setattr("signal.signal", lambda *_: None)  # this process keeps its own handlers
    with pytest.raises(SystemExit) as ended:
        serve_ui(tmp_path, None, port=closed_port())
    assert ended.value.code == 3


def test_ctrl_c_while_the_server_is_being_imported_ends_quietly(tables: None, tmp_path: Path) -> None:
    with start_ui(tmp_path, closed_port(), subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("MLflow starts")
        time.sleep(2)
        os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to all processes in the foreground
        output = process.stdout.read()
        assert "Traceback" not in output, output
        assert "Error" not in output, output
        assert process.wait(60) == 0, output


def test_it_serves_runs_and_their_artifacts(served: Served):
    csv = get(f"{served.url}/get-artifact?run_uuid={served.run_id}&path=trials.csv")
    assert csv.startswith(b"index,mask,n_removed")
    listed = get(f"{served.url}/ajax-api/2.0/mlflow/artifacts/list?run_id={served.run_id}")
    assert b"mask_map.png" in listed


@pytest.mark.usefixtures("blank_figures")
def test_a_server_stores_runs_and_their_files(tmp_path, served: Served, capfd):
    folder = tmp_path / "new"
    record_search(folder, rounds=1, uri=served.url, experiment="served")
    run_id = record_search(folder, uri=served.url, experiment="served")
    assert capfd.readouterr() == ("", "")
    recorded = Recorded(served.url, "served")
    assert recorded.parent.info.run_id == run_id
    recorded.assert_complete(len(SEARCH.trials))
    assert not folder.exists(), "a server keeps its own files"


def test_it_prints_the_addresses_of_views(served: Served) -> None:
    MlflowClient(served.url).set_experiment_tag("1", "mlflow.sharedViewState.raysearch", "of an older version")
    lines = _links(MlflowStore.locate(None, served.folder), served.url)
    whole, table, charts = (line for line in lines if line.startswith("tests"))
    assert whole.startswith(f"tests: all searches: {served.url}/#/experiments/1/runs?")
    assert whole.endswith("?viewStateShareKey=raysearch&compareRunsMode=TABLE")
    assert table.startswith(f"tests, perplexity: the lowest loss first: {served.url}/#/experiments/1/runs?")
    assert table.endswith("?viewStateShareKey=raysearch-perplexity&compareRunsMode=TABLE")
    assert charts == table.replace("TABLE", "CHART").replace("the lowest loss first", "charts")
    experiment = json.loads(get(f"{served.url}/api/2.0/mlflow/experiments/get?experiment_id=1"))["experiment"]
    tags = {tag["key"]: tag["value"] for tag in experiment["tags"]}
    assert "tags.`raysearch.objective`" in json.loads(tags["mlflow.sharedViewState.raysearch"])["orderByKey"]
    view = json.loads(tags["mlflow.sharedViewState.raysearch-perplexity"])
    assert "tags.`raysearch.searcher`" in view["selectedColumns"]
    assert len(view["compareRunCharts"]) == 4
    order = f"{view['orderByKey']} ASC"
    request = {"experiment_ids": ["1"], "filter": view["searchFilter"], "order_by": [order]}
    url = f"{served.url}/api/2.0/mlflow/runs/search"
    header = {"Content-Type": "application/json"}
    (run,) = json.loads(get(urllib.request.Request(url, json.dumps(request).encode(), header), wait_s=30))["runs"]
    assert run["info"]["run_id"] == served.run_id
    metrics = {f"metrics.`{metric['key']}`" for metric in run["data"]["metrics"]}
    chosen = {column for column in view["selectedColumns"] if column.startswith("metrics")}
    assert chosen - metrics == {f"metrics.`{readout}/pruned`" for readout in ("accuracy", "margin", "cosine")}
