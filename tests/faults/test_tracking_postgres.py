"""MLflow on PostgreSQL: what is killed there loses nothing, and its password is kept nowhere."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient
from sqlalchemy import create_engine, inspect, text

from tests.cli.answers import json_answer
from tests.cli.conftest import Run, World, finish, spawn
from tests.faults.conftest import PASSWORD, Postgres, Server, serving
from tests.faults.test_tracking_faults import RecordedSearch, search, warnings

__all__ = ["search"]  # a fixture

pytestmark = [pytest.mark.faults, pytest.mark.slow]


def rows(postgres: Postgres) -> Iterator[str]:
    """Every value in every table."""
    engine = create_engine(postgres.uri)
    for table in inspect(engine).get_table_names():
        with engine.connect() as connection:
            yield from (str(value) for row in connection.execute(text(f'SELECT * FROM "{table}"')) for value in row)
    engine.dispose()


@pytest.fixture
def server(postgres: Postgres, tmp_path: Path) -> Iterator[Server]:
    """An MLflow server on the database, in the place of one on SQLite."""
    with serving(postgres.uri, tmp_path) as created:
        yield created


def test_two_searches_on_a_server_that_dies_with_its_database(
    search: RecordedSearch, postgres: Postgres, server: Server
) -> None:
    server.start()
    other = spawn(*search.arguments, "seed=1", "store=other", f"tracking.uri={server.url}")

    def die() -> None:
        postgres.kill()
        server.send(signal.SIGKILL)
        postgres.start()
        server.start()

    search.disturb(2, die)
    search.assert_complete()
    other_result = json_answer(finish(other))
    json_answer(search.run("sync", "latest", "--store", "other", "--json"))  # whatever it was doing when all was gone
    search.assert_complete(other_result["search_id"])


def test_the_password_comes_from_the_environment_and_is_kept_nowhere(
    run: Run, cwd: Path, world: World, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = world.search(tracking=None, tracking__uri=postgres.uri)
    outcome = run("search", *overrides, "--json")
    result = json_answer(outcome)
    assert warnings(outcome) == []
    assert result["mlflow_run_id"] is not None
    outputs = [run(*line).err for line in (["show", "latest"], ["search", *overrides, "remove=x"], ["sync", "latest"])]
    contents = [file.read_bytes().decode("latin-1") for file in cwd.rglob("*") if file.is_file()]
    assert not any(PASSWORD in text for text in [*contents, *outputs])
    values = list(rows(postgres))
    assert any(postgres.uri in value for value in values), "the params are there"
    assert not any(PASSWORD in value for value in values)

    assert json_answer(run("sync", "latest", "--json"))["missing"] == 0
    monkeypatch.delenv("PGPASSWORD")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", postgres.uri.replace("@", f":{PASSWORD}@"))
    assert json_answer(run("resume", "latest", "--json"))["removed"] == result["removed"]
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    assert MlflowClient(postgres.uri).get_run(result["mlflow_run_id"]).info.status == "FINISHED"
