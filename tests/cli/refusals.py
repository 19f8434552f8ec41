"""What every refusal has in common."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.cli.conftest import Outcome, Run


def tree(*folders: Path) -> dict[Path, int]:
    """Every file and folder with its size, but for what stands beside a database while it is opened."""
    return {
        path: path.stat().st_size if path.is_file() else 0
        for folder in folders
        for path in folder.rglob("*")
        if not path.name.endswith((".lock", "-wal", "-shm", "-machine"))
    }


def is_sentence(message: str, fragments: list[str]) -> None:
    """One line that names all of it, and tells nothing of how the program is made."""
    assert message and len(message.splitlines()) == 1 and message.isprintable(), message
    assert len(message) < 1500, len(message)
    for machinery in ("Traceback", "omegaconf", "pydantic", "antlr"):
        assert machinery not in message.lower(), message
    for part in fragments:
        assert part in message, message


def refuses(outcome: Outcome, fragments: list[str], bad: Path) -> None:
    """One sentence on standard error, exit code 2, and nothing else."""
    err = outcome.err.replace(str(bad), "BAD")
    assert err.startswith("error: ") and err.endswith("\n"), err
    is_sentence(err.removesuffix("\n"), fragments)
    assert "hydra." not in err.replace("hydra.run", "")
    assert (outcome.code, outcome.out) == (2, "")


def refuses_cleanly(run: Run, words: Iterable[object], fragments: list[str], *folders: Path) -> None:
    """A command that `refuses`, and leaves nothing behind in these folders, the last of which is called BAD."""
    before = tree(*folders)
    refuses(run(*words), fragments, folders[-1])
    assert tree(*folders) == before, "nothing is left behind"
