"""A typed secret is never printed or recorded, and a record without it is refused with the reason."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Run, World
from tests.sentences import Sentences

SECRET = "aVery-Secret-Value-7"


def test_mistakes_do_not_repeat_it(run: Run, world: World, subtests: pytest.Subtests, sentences: Sentences) -> None:
    assert run("search", *world.search()).code == 0
    for words in (
        ["search", f"tracking.uri=http://me:{SECRET}@host", "tracking.type=mlfow"],
        ["search", f"tracking.urk=http://me:{SECRET}@host"],
        ["search", f"http://me:{SECRET}@host"],
        ["search", f"remove=http://me:{SECRET}@host"],
        ["search", f"--tracking=http://me:{SECRET}@host"],
        ["show", f"http://me:{SECRET}@host"],
        ["ui", "--uri", f"http://me:{SECRET}@host"],
        ["sync", "latest", f"tracker.uri=http://me:{SECRET}@host"],
    ):
        with subtests.test(words=words):
            outcome = run(*words)
            sentences.refused_command(outcome, " ".join(words).replace(SECRET, "SECRET"))
            assert SECRET not in outcome.out + outcome.err


def test_a_record_without_its_secret_is_refused(
    run: Run, cwd: Path, world: World, monkeypatch: pytest.MonkeyPatch, sentences: Sentences
) -> None:
    monkeypatch.setenv("TEAM_TOKEN", SECRET)
    (cwd / SECRET).mkdir()
    shutil.copy(world.text, cwd / SECRET / "prose.txt")
    words = world.search(data__path=f"{SECRET}/prose.txt")
    assert run("search", *words).code == 0
    assert not any(SECRET.encode() in file.read_bytes() for file in (cwd / "mlruns").rglob("*") if file.is_file())
    sentences.refused_command(run("resume", "latest"))
    assert run("search", *words).code == 0
