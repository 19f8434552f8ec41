"""Where runs are kept, and the passwords that records leave out."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysearch.errors import UserError, redact
from raysearch.tracking.options import Store, TrackingOptions


def test_an_address_from_a_record_gets_its_password_from_mlflows_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = "https://me:s3cret@host/mlflow"
    recorded = redact(given)
    for name in ("URI", "USERNAME", "TOKEN"):
        monkeypatch.delenv(f"MLFLOW_TRACKING_{name}", raising=False)
    with pytest.raises(UserError, match="MLFLOW_TRACKING"):
        Store.locate(recorded, tmp_path).check()
    for variable, value, uri in (
        ("URI", given, given),
        ("USERNAME", "me", "https://host/mlflow"),
        ("TOKEN", "abc", "https://host/mlflow"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(f"MLFLOW_TRACKING_{variable}", value)
            found = Store.locate(recorded, tmp_path)
            assert found.uri == uri
            found.check()
    database = redact("postgresql://me:s3cret@host/db")
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
    assert Store.locate(database, tmp_path).uri == database, "a database is not signed in to by these"


def test_a_database_beside_the_command_is_the_same_for_processes_in_other_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for given, uri in (
        ("sqlite:///my.db", f"sqlite:///{tmp_path}/my.db"),
        ("sqlite+pysqlite:///a/my.db?timeout=9", f"sqlite+pysqlite:///{tmp_path}/a/my.db?timeout=9"),
        ("sqlite:////my.db", "sqlite:////my.db"),
        ("http://host:5000", "http://host:5000"),
        (None, None),
    ):
        found = TrackingOptions("mlflow", given, "x", Path("mlruns")).elsewhere()
        assert (found.uri, found.folder) == (uri, tmp_path / "mlruns")


def test_only_an_address_of_the_web_is_a_link(tmp_path: Path) -> None:
    links = {
        "http://me:s3cret@host:5000/mlflow/": "http://host:5000/mlflow/#/runs/abc",
        "postgresql://host/db": "http://127.0.0.1:5000/#/runs/abc",
        "databricks": None,
        "databricks://profile": None,
    }
    assert {uri: TrackingOptions("mlflow", uri, "x", tmp_path).link("abc") for uri in links} == links
