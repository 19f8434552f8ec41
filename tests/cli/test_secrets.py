"""A typed secret is refused, and never printed or recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run, World
from tests.sentences import Sentences
from tests.tracking.conftest import closed_port

SECRET = "aVery-Secret-Value-7"


def test_mistakes_do_not_repeat_it(run: Run, world: World, subtests: pytest.Subtests, sentences: Sentences) -> None:
    assert run("search", *world.search()).code == 0
    for arguments in (
        ["search", f"tracking.uri=http://me:{SECRET}@host", "tracking.type=mlfow"],
        ["search", f"tracking.urk=http://me:{SECRET}@host"],
        ["search", f"http://me:{SECRET}@host"],
        ["search", f"remove=http://me:{SECRET}@host"],
        ["search", f"--tracking=http://me:{SECRET}@host"],
        ["show", f"http://me:{SECRET}@host"],
        ["ui", "--uri", f"http://me:{SECRET}@host"],
        ["ui", "--uri", f"postgresql://me:{SECRET}@host/db"],
        ["sync", "latest", f"tracker.uri=http://me:{SECRET}@host"],
        ["sync", "latest", f"tracking.uri=http://me:{SECRET}@host"],
        ["resume", "latest", f"tracking.uri=http://me:{SECRET}@host"],
        ["assess", "latest", f"assess.server=http://me:{SECRET}@host/v1"],
        ["sweep", "--also", f"objective=kl data=file data.path=http://me:{SECRET}@host"],
    ):
        with subtests.test(arguments=arguments):
            outcome = run(*arguments)
            sentences.refused_command(outcome, " ".join(arguments).replace(SECRET, "SECRET"))
            assert SECRET not in outcome.out + outcome.err


def test_a_secret_in_an_override_is_refused_before_anything_is_recorded(
    run: Run, cwd: Path, world: World, monkeypatch: pytest.MonkeyPatch, sentences: Sentences
) -> None:
    monkeypatch.setenv("TEAM_TOKEN", SECRET)
    for override in (f"tracking.uri=postgresql://me:{SECRET}@host/db", f"data.path={SECRET}/prose.txt"):
        outcome = run("search", *world.search(), override)
        assert outcome.out == ""
        sentences.refused_command(outcome, override.replace(SECRET, "SECRET"))
    assert not (cwd / "mlruns").exists()


def test_the_password_of_a_server_comes_from_the_environment(
    run: Run, cwd: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("search", *world.search()).code == 0
    host = f"127.0.0.1:{closed_port()}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:{SECRET}@{host}")
    outcome = run("sync", "latest", "tracking=mlflow", f"tracking.uri=http://me@{host}")
    assert outcome.code == 2
    assert outcome.err.startswith(f"error: tracking.uri=http://me:***@{host} cannot be written to (")
    assert SECRET not in outcome.out + outcome.err
    assert not any(SECRET.encode() in file.read_bytes() for file in cwd.rglob("*") if file.is_file())
