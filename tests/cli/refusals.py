"""Checks that hold for every refusal."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.cli.conftest import Outcome, Run


def tree(*folders: Path) -> dict[Path, int]:
    """Return every file and folder with its size, except the temporary files of an open database."""
    return {
        path: path.stat().st_size if path.is_file() else 0
        for folder in folders
        for path in folder.rglob("*")
        if not path.name.endswith((".lock", "-wal", "-shm", "-machine"))
    }


def is_sentence(message: str, fragments: list[str]) -> None:
    """Check that a message is one line with all fragments, and shows no internals of the program."""
    assert message, message
    assert len(message.splitlines()) == 1, message
    assert message.isprintable(), message
    assert len(message) < 1500, len(message)
    for machinery in ("Traceback", "omegaconf", "pydantic", "antlr"):
        assert machinery not in message.lower(), message
    for part in fragments:
        assert part in message, message


def refuses(outcome: Outcome, fragments: list[str], bad: Path) -> None:
    """Check that a command printed one sentence on standard error, and ended with exit code 2."""
    err = outcome.err.replace(str(bad), "BAD")
    assert err.startswith("error: "), err
    assert err.endswith("\n"), err
    is_sentence(err.removesuffix("\n"), fragments)
    assert "hydra." not in err.replace("hydra.run", "")
    assert (outcome.code, outcome.out) == (2, "")


def refuses_cleanly(run: Run, arguments: Iterable[object], fragments: list[str], *folders: Path) -> None:
    """Check that a command is refused, and leaves nothing behind in these folders; the last is called BAD."""
    before = tree(*folders)
    refuses(run(*arguments), fragments, folders[-1])
    assert tree(*folders) == before, "nothing is left behind"
