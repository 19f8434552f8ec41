"""The location of MLflow's store, and passwords, which come from the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysearch.configuration.compose import compose, with_tracking
from raysearch.errors import UserError
from raysearch.tracking.options import MlflowStore, TrackingOptions, password_variables

#: An address with its password, the same as a user gives it, and as earlier versions recorded it.
ADDRESSES = [
    ("https://me:s3cret@host/mlflow", "https://me@host/mlflow", "https://me:***@host/mlflow"),
    ("https://s3cret-t0ken@host/mlflow", "https://host/mlflow", "https://***@host/mlflow"),
    ("mysql://me:s3c/r@t@host/db?charset=utf8", "mysql://me@host/db?charset=utf8", "mysql://me:***@host/db?charset=utf8"),
    ("postgresql://host/db?user=me&password=s3cret", "postgresql://host/db?user=me", "postgresql://host/db?user=me&password=***"),
    ("mssql+pyodbc://host/?odbc_connect=PWD%3Ds3c%2Fr3t", "mssql+pyodbc://host/", "mssql+pyodbc://host/?odbc_connect=***"),
    ("https://host/x?sig=Ab%2F9c&sv=1", "https://host/x?sv=1", "https://host/x?sig=***&sv=1"),
]  # fmt: skip


def test_the_password_of_an_address_is_taken_from_the_same_address_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    for whole, given, recorded in ADDRESSES:
        for address in (given, recorded):
            with subtests.test(address):
                monkeypatch.setenv("MLFLOW_TRACKING_URI", whole)
                assert MlflowStore.locate(address, tmp_path).uri == whole
                monkeypatch.setenv("MLFLOW_TRACKING_URI", whole.replace("host", "another"))
                assert MlflowStore.locate(address, tmp_path).uri == given
                monkeypatch.delenv("MLFLOW_TRACKING_URI")
                assert MlflowStore.locate(address, tmp_path).uri == given


def test_an_address_with_its_password_is_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for whole, _, _ in ADDRESSES:
        with subtests.test(whole), pytest.raises(UserError) as refused:
            MlflowStore.locate(whole, tmp_path, "--uri")
        [sentence] = refused.value.sentences
        assert sentence.startswith("--uri has a password or a token; remove it from the value, and set ")
        assert sentence.endswith(password_variables(whole))
        assert "s3c" not in sentence


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
        "http://me@host:5000/mlflow/": "http://host:5000/mlflow/#/runs/abc",
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
