"""A typed secret is never printed or recorded, and a record without it is refused with the reason."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Run, World

SECRET = "aVery-Secret-Value-7"


def test_mistakes_do_not_repeat_it(run: Run, world: World, subtests: pytest.Subtests) -> None:
    assert run("search", *world.search()).code == 0
    for arguments in (
        ["search", f"tracking.uri=http://me:{SECRET}@host", "tracking.type=mlfow"],
        ["search", f"tracking.urk=http://me:{SECRET}@host"],
        ["search", f"http://me:{SECRET}@host"],
        ["search", f"remove=http://me:{SECRET}@host"],
        ["search", f"--tracking=http://me:{SECRET}@host"],
        ["show", f"http://me:{SECRET}@host"],
        ["ui", "--uri", f"http://me:{SECRET}@host"],
        ["sync", "latest", f"tracker.uri=http://me:{SECRET}@host"],
    ):
        with subtests.test(arguments=arguments):
            outcome = run(*arguments)
            assert outcome.code == 2
            assert outcome.err.startswith("error: ")
            assert SECRET not in outcome.out + outcome.err


def test_a_record_without_its_secret_is_refused(
    run: Run, cwd: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEAM_TOKEN", SECRET)
    (cwd / SECRET).mkdir()
    shutil.copy(world.text, cwd / SECRET / "prose.txt")
    arguments = world.search(data__path=f"{SECRET}/prose.txt")
    assert run("search", *arguments).code == 0
    assert not any(SECRET.encode() in file.read_bytes() for file in (cwd / "mlruns").rglob("*") if file.is_file())
    outcome = run("resume", "latest")
    sentence = "data.path is recorded without its secret; type the whole search command again, which resumes it too"
    assert (outcome.code, outcome.err) == (2, f"error: {sentence}\n")
    assert run("search", *arguments).code == 0
