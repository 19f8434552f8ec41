"""What every refusal has in common."""

from __future__ import annotations

from pathlib import Path


def tree(*folders: Path) -> dict[Path, int]:
    """Every file and folder with its size, but for what stands beside a database while it is opened."""
    return {
        path: path.stat().st_size if path.is_file() else 0
        for folder in folders
        for path in folder.rglob("*")
        if not path.name.endswith((".lock", "-wal", "-shm", "-machine"))
    }


def is_sentence(message: str, said: list[str]) -> None:
    """One line that names all of it, and tells nothing of how the program is made."""
    assert message and len(message.splitlines()) == 1 and message.isprintable(), message
    assert len(message) < 1500, len(message)
    for machinery in ("Traceback", "omegaconf", "pydantic", "antlr"):
        assert machinery not in message.lower(), message
    for part in said:
        assert part in message, message


def refuses(code: int, out: str, err: str, said: list[str], bad: Path) -> None:
    """One sentence on standard error, exit code 2, and nothing else."""
    err = err.replace(str(bad), "BAD")
    assert err.startswith("error: ") and err.endswith("\n"), err
    is_sentence(err.removesuffix("\n"), said)
    assert "hydra." not in err.replace("hydra.run", "")
    assert (code, out) == (2, "")
