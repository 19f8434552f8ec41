"""MLflow on PostgreSQL: what is killed there loses nothing, and its password is kept nowhere."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from sqlalchemy import create_engine, inspect, text

from tests.cli.conftest import Run, World, finish, spawn
from tests.cli.found import found
from tests.faults.conftest import PASSWORD, Postgres, Server
from tests.faults.test_tracking_faults import after_round, check_complete, same, undisturbed, warnings, words

__all__ = ["after_round", "undisturbed", "words"]  # fixtures

pytestmark = [
    pytest.mark.faults,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning"),  # MLflow's own calls
]

TOKEN = "hf_" + "Zx9" * 11


def rows(postgres: Postgres) -> Iterator[str]:
    """Every value in every table."""
    engine = create_engine(postgres.uri)
    for table in inspect(engine).get_table_names():
        with engine.connect() as connection:
            yield from (str(value) for row in connection.execute(text(f'SELECT * FROM "{table}"')) for value in row)
    engine.dispose()


def test_two_searches_on_a_server_that_dies_with_its_database(
    run: Run,
    words: list[str],
    undisturbed: dict[str, Any],
    postgres: Postgres,
    serve: Callable[..., Server],
    after_round: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
    server = serve(postgres.uri)
    server.start()
    other = spawn(*words, "seed=1", "store=other", f"tracking.uri={server.url}")

    def die() -> None:
        postgres.kill()
        server.send(signal.SIGKILL)
        postgres.start()
        server.start()

    after_round(2, die)
    assert same(found(run(*words, f"tracking.uri={server.url}")), undisturbed)
    check_complete(server.url, undisturbed)
    beside = found(finish(other))
    found(run("sync", "latest", "--store", "other", "--json"))  # whatever it was doing when all was gone
    check_complete(server.url, beside)


def test_no_password_or_token_is_kept_and_what_needs_one_asks(
    run: Run,
    here: Path,
    world: World,
    postgres: Postgres,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TEAM_TOKEN", "aVery-Secret-Value-7")
    words = world.search(
        tracking=None, tracking__uri=postgres.uri, tracking__experiment=f"x {TOKEN} aVery-Secret-Value-7"
    )
    outcome = run("search", *words, "--json")
    result = found(outcome)
    assert warnings(outcome) == []
    assert result["mlflow_run_id"] is not None
    outputs = [run(*line).err for line in (["show", "latest"], ["search", *words, "remove=x"], ["sync", "latest"])]
    kept = [file.read_bytes().decode("latin-1") for file in here.rglob("*") if file.is_file()]
    for secret in (PASSWORD, TOKEN, "aVery-Secret-Value-7"):
        assert not any(secret in words for words in [*kept, *outputs])
    values = list(rows(postgres))
    assert any("postgresql+psycopg2://mlflow:***@127.0.0.1" in value for value in values), "the params are there"
    assert not any(PASSWORD in value for value in values)
    allowed = re.escape(f"x {TOKEN} aVery-Secret-Value-7")  # the experiment's own name, which was asked for
    assert not [value for value in values if TOKEN in value and not re.fullmatch(allowed, value)]

    address = postgres.uri.replace(PASSWORD, "***")
    sentence = f"error: tracking.uri={address} is on record without its password"
    given = [f"tracking.experiment='x {TOKEN} aVery-Secret-Value-7'"]
    for command in ("resume", "sync"):
        outcome = run(command, "latest", *given)
        assert (outcome.code, outcome.err.startswith(sentence)) == (2, True), outcome.err
        outcome = run(command, "latest")
        assert outcome.err.startswith("error: tracking.experiment is on record without its secret; give it again")
    assert found(run("sync", "latest", f"tracking.uri={postgres.uri}", *given, "--json"))["missing"] == 0
    monkeypatch.setenv("MLFLOW_TRACKING_URI", postgres.uri)
    assert found(run("resume", "latest", *given, "--json"))["removed"] == result["removed"]
    assert MlflowClient(postgres.uri).get_run(result["mlflow_run_id"]).info.status == "FINISHED"
