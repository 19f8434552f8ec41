"""The location of MLflow's store, and passwords, which are not recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysearch.configuration.compose import compose, with_tracking
from raysearch.errors import UserError
from raysearch.text.redaction import redact
from raysearch.tracking.options import MlflowStore, TrackingOptions
from tests.sentences import Sentences


def test_an_address_from_a_record_gets_its_password_from_mlflows_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sentences: Sentences
) -> None:
    address = "https://me:s3cret@host/mlflow"
    recorded = redact(address)
    for name in ("URI", "USERNAME", "TOKEN"):
        monkeypatch.delenv(f"MLFLOW_TRACKING_{name}", raising=False)
    with sentences.refused(UserError):
        MlflowStore.locate(recorded, tmp_path).check()
    for variable, value, uri in (
        ("URI", address, address),
        ("USERNAME", "me", "https://host/mlflow"),
        ("TOKEN", "abc", "https://host/mlflow"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(f"MLFLOW_TRACKING_{variable}", value)
            store = MlflowStore.locate(recorded, tmp_path)
            assert store.uri == uri
            store.check()
    database = redact("postgresql://me:s3cret@host/db")
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
    assert MlflowStore.locate(database, tmp_path).uri == database, "these variables are no login for a database"


def test_a_relative_database_path_is_made_absolute_for_processes_in_other_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for address, uri in (
        ("sqlite:///my.db", f"sqlite:///{tmp_path}/my.db"),
        ("sqlite+pysqlite:///a/my.db?timeout=9", f"sqlite+pysqlite:///{tmp_path}/a/my.db?timeout=9"),
        ("sqlite:////my.db", "sqlite:////my.db"),
        ("http://host:5000", "http://host:5000"),
        (None, None),
    ):
        options = TrackingOptions("mlflow", address, "x", Path("mlruns")).with_absolute_paths()
        assert (options.uri, options.folder) == (uri, tmp_path / "mlruns")


def test_only_web_addresses_are_links(tmp_path: Path) -> None:
    links = {
        "http://me:s3cret@host:5000/mlflow/": "http://host:5000/mlflow/#/runs/abc",
        "postgresql://host/db": "http://127.0.0.1:5000/#/runs/abc",
        "databricks": None,
        "databricks://profile": None,
    }
    assert {uri: TrackingOptions("mlflow", uri, "x", tmp_path).link("abc") for uri in links} == links


def test_a_record_of_an_earlier_version_is_read_without_its_limit_of_child_runs() -> None:
    config = compose("search", ["tracking=mlflow"])
    old = {**config, "tracking": {**config["tracking"], "max_child_runs": 2000}}
    assert with_tracking(old, ())["tracking"] == config["tracking"]
    assert with_tracking(old, ["tracking.experiment=x"])["tracking"] == {**config["tracking"], "experiment": "x"}
