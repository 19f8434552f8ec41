"""The log of a command, and the events that only a log shows."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from raysearch.cli.log_file import VARIABLE, open_log_file
from tests.cli.conftest import Run, World
from tests.sentences import Sentences


@pytest.fixture
def log_file(cwd: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of `VARIABLE`. The logger is restored afterwards."""
    file = cwd / "raysearch.log"
    monkeypatch.setenv(VARIABLE, str(file))
    logger = logging.getLogger("raysearch")
    handlers = [*logger.handlers]
    level = logger.level
    yield file
    for handler in set(logger.handlers) - {*handlers}:
        logger.removeHandler(handler)
        handler.close()
    logger.setLevel(level)
    logger.propagate = True


def test_a_repeated_search_logs_what_it_takes_from_the_cache(run: Run, world: World, log_file: Path) -> None:
    first = run("search", *world.search())
    assert first.code == 0
    repeated = run("search", *world.search(), "store=another")
    assert repeated.code == 0
    assert "DEBUG raysearch.models.file_cache: the cached value " in log_file.read_text()
    assert "cached value" not in repeated.out
    assert "cached value" not in repeated.err


def test_a_log_file_that_cannot_be_written_is_refused(
    run: Run, cwd: Path, monkeypatch: pytest.MonkeyPatch, sentences: Sentences
) -> None:
    monkeypatch.setenv(VARIABLE, str(cwd))
    outcome = run("show")
    assert outcome.out == ""
    sentences.refused_command(outcome)


def test_a_log_has_no_secrets(log_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_PASSWORD", "correct-horse-7")
    open_log_file()
    logging.getLogger("raysearch.cluster").info("joined %s", "ray://user:correct-horse-7@host")
    assert "joined ray://" in log_file.read_text()
    assert "correct-horse-7" not in log_file.read_text()
