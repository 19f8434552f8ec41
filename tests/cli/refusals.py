"""Checks that hold for every refusal."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.cli.conftest import Outcome, Run
from tests.sentences import Sentences


def tree(*folders: Path) -> dict[Path, int]:
    """Return every file and folder with its size, except the temporary files of an open database."""
    return {
        path: path.stat().st_size if path.is_file() else 0
        for folder in folders
        for path in folder.rglob("*")
        if not path.name.endswith((".lock", "-wal", "-shm", "-machine"))
    }


def is_sentence(message: str) -> None:
    """Check that a message is one line that shows no internals of the program."""
    assert message, message
    assert len(message.splitlines()) == 1, message
    assert message.isprintable(), message
    assert len(message) < 1500, len(message)
    for machinery in ("Traceback", "omegaconf", "pydantic", "antlr"):
        assert machinery not in message.lower(), message


def refuses(outcome: Outcome, sentences: Sentences, case: str = "") -> None:
    """Check that a command printed nothing but the sentence of the golden file, and ended with exit code 2.

    Args:
        outcome: How the command ended.
        sentences: The sentences of the test.
        case: The name of the case, if a test has several.
    """
    assert outcome.err.endswith("\n"), outcome.err
    is_sentence(outcome.err.removesuffix("\n"))
    assert "hydra." not in outcome.err.replace("hydra.run", "")
    assert outcome.out == ""
    sentences.refused_command(outcome, case)


def refuses_cleanly(run: Run, arguments: Iterable[object], sentences: Sentences, case: str, *folders: Path) -> None:
    """Check that a command is refused, and leaves nothing behind in these folders.

    Args:
        run: Runs a command.
        arguments: The arguments of the command.
        sentences: The sentences of the test.
        case: The name of the case; empty if the test has only one.
        folders: The folders.
    """
    before = tree(*folders)
    refuses(run(*arguments), sentences, case)
    assert tree(*folders) == before, "nothing is left behind"
