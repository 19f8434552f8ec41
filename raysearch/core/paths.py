"""Checks the user's paths and file names."""

from __future__ import annotations

import os
import reprlib
import shlex
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from raysearch.errors import UserError, what_failed

PathLike = str | os.PathLike[str]


def as_path(name: str, value: object) -> Path:
    """Return a path, which need not exist, its ``~`` the user's home; `name` is the argument, for messages.

    Raises:
        UserError: It is no path, or cannot be used: a loop of links, a name too long, an unknown home.
    """
    if not isinstance(value, str | os.PathLike):
        raise UserError(f"{name}={reprlib.repr(value)} is a {type(value).__name__}; give a path")
    if value == "":
        raise UserError(f"{name}= is empty; give a path")
    try:
        path = Path(value).expanduser()
        with suppress(FileNotFoundError):
            os.lstat(path.resolve())
        return path
    except (OSError, RuntimeError, ValueError, TypeError) as error:
        raise UserError(
            f"{name}={os.fspath(value)!s} cannot be used ({what_failed(error)}); name another path"
        ) from error


def as_folder(name: str, value: object) -> Path:
    """Return the path of a folder that exists or can be created; the arguments are those of `as_path`.

    Raises:
        UserError: As `as_path`, or it is a file, or cannot be written.
    """
    path = as_path(name, value)
    if path.exists() and not path.is_dir():
        raise UserError(f"{name}={path} is a file; name a folder")
    whole = path.absolute()
    there = next(folder for folder in (whole, *whole.parents) if folder.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"{name}={path} cannot be written ({there} is closed to you or read-only); name another folder")
    return path


def write_files(name: str, folder: Path, contents: Mapping[str, bytes]) -> list[Path]:
    """Write files, by their paths in a folder that is made if need be, and return them; `name` as of `as_path`."""
    files = {folder / file: content for file, content in contents.items()}
    try:
        for file, content in files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
    except OSError as error:
        raise UserError(f"{name}={folder} cannot be written ({what_failed(error)}); name another folder") from error
    return [*files]


@contextmanager
def written_whole(file: Path) -> Iterator[Path]:
    """Yield the place of a new file, hidden beside another, which it replaces if the context ends well.

    So a file is never there in part, however many processes write it at once.
    """
    unfinished = file.with_name(f".{file.name}.{uuid.uuid4().hex}.part")
    try:
        yield unfinished
        unfinished.replace(file)
    finally:
        with suppress(OSError):
            unfinished.unlink()


def write_whole(file: Path, text: str) -> None:
    """Write a text as `written_whole` does."""
    with written_whole(file) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def ledger_path(name: str, store: object) -> Path:
    """Return a ledger's file: the one in a store, or the one that is named; as `as_path`."""
    path = as_path(name, store)
    return path if path.is_file() or (path.suffix == ".db" and not path.is_dir()) else path / "ledger.db"


def option_for(store: Path, ledger: Path | None = None) -> str:
    """Return a command's option for a store or a ledger elsewhere, as in `` --store other``; empty for the default."""
    place = store if ledger in (None, store / "ledger.db") else ledger
    return "" if place == Path("mlruns") else f" --store {shlex.quote(str(place))}"


def option_of(config: Mapping[str, Any]) -> str:
    """Return a command's option for the ledger of a search that was configured so, as `option_for`."""
    ledger = config.get("ledger")
    return option_for(Path(config.get("store", "mlruns")), None if ledger is None else Path(ledger))


def as_name(name: str, value: str) -> str:
    """Return a text that can be the name of a file or folder; refuse separators, dots alone and long ones."""
    if value.strip(" .") == "" or len(value.encode(errors="replace")) > 100 or set(value) & set("/\\\0"):
        raise UserError(f"{name}={value} cannot name a file; use at most 100 letters, digits, - and _")
    return value


def sizes_of_folders(folders: Iterable[Path]) -> dict[Path, int]:
    """Return the bytes of the files in each of the folders that are there."""
    return {
        folder: sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        for folder in folders
        if folder.is_dir()
    }
