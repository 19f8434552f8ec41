import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from mlflow import MlflowClient

from raysearch.errors import UserError
from raysearch.tracking.mlflow.ui import _links, serve_ui
from raysearch.tracking.store import Store
from tests.tracking.conftest import ROOT, Served, closed_port, get, start_python
from tests.tracking.mlflow.test_tracker import SEARCH, tell
from tests.tracking.recorded import Recorded


def test_a_folder_without_a_store_names_the_command_that_makes_one(tmp_path):
    with pytest.raises(UserError, match="raysearch search"):
        serve_ui(tmp_path, None)


def test_a_server_needs_no_second_one(tmp_path):
    with pytest.raises(UserError, match="http://mlflow:5000 is a server already"):
        serve_ui(tmp_path, "http://mlflow:5000")


def test_a_database_that_cannot_be_opened_is_refused_before_the_server_tries_for_minutes(tmp_path):
    with pytest.raises(UserError, match="^--uri=mssql.*PWD%3D.*cannot be opened .ModuleNotFoundError.*; correct it"):
        serve_ui(tmp_path, "mssql+pyodbc:///?odbc_connect=PWD%3Ds3cr3t", port=closed_port())


def test_a_port_in_use_is_named_with_the_remedy(tmp_path):
    (tmp_path / "mlflow.db").touch()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=f"port={port} .*in use.*--port"):
            serve_ui(tmp_path, None, port=port)


@pytest.mark.parametrize(
    ("host", "port", "named"),
    [
        ("no.such.host.invalid", 5000, "host=no.such"),
        ("127.0.0.1", 70000, "port=70000"),
        ("127.0.0.1", 0, "port=0"),
        ("x" * 99, 5000, "label too long"),
    ],
)
def test_an_impossible_address_is_refused(tmp_path, host, port, named):
    (tmp_path / "mlflow.db").touch()
    with pytest.raises(UserError, match=named):
        serve_ui(tmp_path, None, host=host, port=port)


def test_a_server_that_fails_gives_its_exit_code(tables: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raysearch.tracking.mlflow.ui._command", lambda *_: ["sh", "-c", "exit 3"])
    monkeypatch.setattr("signal.signal", lambda *_: None)  # this process goes on, with its own handlers
    with pytest.raises(SystemExit) as ended:
        serve_ui(tmp_path, None, port=closed_port())
    assert ended.value.code == 3


def test_ctrl_c_while_the_server_is_being_imported_ends_quietly(tables: None, tmp_path: Path) -> None:
    script = f"from raysearch.tracking.mlflow.ui import serve_ui; serve_ui(Path('.'), None, port={closed_port()})"
    for wait_s in (0.5, 2.5):
        with subprocess.Popen(
            [sys.executable, "-c", f"from pathlib import Path; print('begins', flush=True); {script}"],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            assert process.stdout is not None and process.stdout.readline() == "begins\n"
            time.sleep(1 + wait_s)
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to all that are in the foreground
            said = process.stdout.read()
            assert "Traceback" not in said and "Error" not in said and process.wait(60) == 0, said


def test_it_serves_runs_and_their_artifacts(served: Served):
    csv = get(f"{served.url}/get-artifact?run_uuid={served.run_id}&path=trials.csv")
    assert csv.startswith(b"index,round,removed")
    listed = get(f"{served.url}/ajax-api/2.0/mlflow/artifacts/list?run_id={served.run_id}")
    assert b"mask_map.png" in listed


@pytest.mark.usefixtures("blank_figures")
def test_a_server_holds_the_runs_and_their_files(tmp_path, served: Served, capfd):
    folder = tmp_path / "new"
    tell(folder, rounds=1, uri=served.url, experiment="told")
    run_id = tell(folder, uri=served.url, experiment="told")
    assert capfd.readouterr() == ("", "")
    recorded = Recorded(served.url, "told")
    assert recorded.parent.info.run_id == run_id
    recorded.assert_complete(len(SEARCH.trials))
    assert not folder.exists(), "a server keeps its own files"


def test_it_prints_where_searches_are_and_what_to_pick(served: Served) -> None:
    MlflowClient(served.url).set_experiment_tag("1", "mlflow.sharedViewState.raysearch", "of an older version")
    lines = _links(Store.locate(None, served.folder), served.url)
    table, charts = (line for line in lines if line.startswith("tests:"))
    assert table.startswith(f"tests: searches, the lowest loss first: {served.url}/#/experiments/1/runs?")
    assert table.endswith("?viewStateShareKey=raysearch&compareRunsMode=TABLE")
    assert charts == table.replace("TABLE", "CHART").replace(
        "searches, the lowest loss first", "charts that compare them"
    )
    experiment = json.loads(get(f"{served.url}/api/2.0/mlflow/experiments/get?experiment_id=1"))["experiment"]
    tags = {tag["key"]: tag["value"] for tag in experiment["tags"]}
    view = json.loads(tags["mlflow.sharedViewState.raysearch"])
    assert "tags.`raysearch.searcher`" in view["selectedColumns"] and len(view["compareRunCharts"]) == 4
    order = f"{view['orderByKey']} ASC"
    asked = {"experiment_ids": ["1"], "filter": view["searchFilter"], "order_by": [order]}
    found = json.loads(get_json(f"{served.url}/api/2.0/mlflow/runs/search", asked))
    (run,) = found["runs"]
    assert run["info"]["run_id"] == served.run_id
    metrics = {f"metrics.`{metric['key']}`" for metric in run["data"]["metrics"]}
    chosen = {column for column in view["selectedColumns"] if column.startswith("metrics")}
    assert chosen - metrics == {f"metrics.`{other}/pruned`" for other in ("accuracy", "margin", "cosine")}


def get_json(url: str, body: object) -> bytes:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return bytes(answer.read())


@pytest.mark.faults
def test_sigterm_leaves_nothing_behind(tables: None, tmp_path: Path) -> None:
    """Ctrl-C is sent at the end of all tests; see `served`."""
    port = closed_port()
    script = f"from raysearch.tracking.mlflow.ui import serve_ui; serve_ui(Path('.'), None, port={port})"
    with start_python(f"from pathlib import Path; {script}", tmp_path, subprocess.DEVNULL) as process:
        assert get(f"http://127.0.0.1:{port}/health", wait_s=120) == b"OK"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0, "no server is left behind"
