"""Checks the user's paths and file names."""

from __future__ import annotations

import os
import reprlib
import shlex
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from raysearch.errors import UserError
from raysearch.text.sentences import what_failed

PathLike = str | os.PathLike[str]


def as_path(name: str, value: object) -> Path:
    """Return a path, which need not exist, with the user's home in place of ``~``.

    Args:
        name: The argument that holds the path, for messages.
        value: The path.

    Returns:
        The path. It is relative if the user's is.

    Raises:
        UserError: The value is not a path, or cannot be used: a loop of links, a name too long, an unknown home.
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
    """Return the path of a folder that exists or can be created.

    Args:
        name: The argument that holds the path, for messages.
        value: The path.

    Returns:
        The path. The folder is not created.

    Raises:
        UserError: The value is not a path, or the path cannot be used, is a file, or cannot be written.
    """
    path = as_path(name, value)
    if path.exists() and not path.is_dir():
        raise UserError(f"{name}={path} is a file; name a folder")
    absolute = path.absolute()
    existing = next(folder for folder in (absolute, *absolute.parents) if folder.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(
            f"{name}={path} cannot be written ({existing} is closed to you or read-only); name another folder"
        )
    return path


def write_files(name: str, folder: Path, contents: Mapping[str, bytes]) -> list[Path]:
    """Write files into a folder, which is created if it is missing, and return their paths.

    Args:
        name: The argument that holds the folder, for messages.
        folder: The folder.
        contents: The content of each file, by the file's path in the folder.

    Returns:
        The path of each file, in the order of `contents`.

    Raises:
        UserError: The folder cannot be written.
    """
    files = {folder / file: content for file, content in contents.items()}
    try:
        for file, content in files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
    except OSError as error:
        raise UserError(f"{name}={folder} cannot be written ({what_failed(error)}); name another folder") from error
    return [*files]


@contextmanager
def atomic_file(file: Path) -> Iterator[Path]:
    """Yield the path of a hidden temporary file, which replaces `file` if the context ends without an exception.

    So the file is never incomplete, even if several processes write it at once.
    """
    unfinished = file.with_name(f".{file.name}.{uuid.uuid4().hex}.part")
    try:
        yield unfinished
        unfinished.replace(file)
    finally:
        with suppress(OSError):
            unfinished.unlink()


def write_atomically(file: Path, text: str) -> None:
    """Write a text to a file that is never incomplete, see `atomic_file`.

    Args:
        file: The file.
        text: Its new content.
    """
    with atomic_file(file) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def ledger_path(name: str, store: object) -> Path:
    """Return the file of a ledger.

    Args:
        name: The argument that holds the path, for messages.
        store: A store, which contains its ledger, or the file of a ledger.

    Returns:
        The path of the file, which need not exist.

    Raises:
        UserError: The value is not a path, or cannot be used.
    """
    path = as_path(name, store)
    return path if path.is_file() or (path.suffix == ".db" and not path.is_dir()) else path / "ledger.db"


def option_for(store: Path, ledger: Path | None = None) -> str:
    """Return the option of a command for a store or a ledger: `` --store other``; empty for the default store.

    Args:
        store: The store.
        ledger: The file of the ledger; None for the ledger in the store.

    Returns:
        A space and the option, quoted for a shell; or an empty text.
    """
    path = store if ledger in (None, store / "ledger.db") else ledger
    return "" if path == Path("mlruns") else f" --store {shlex.quote(str(path))}"


def as_name(name: str, value: str) -> str:
    """Return a text if it can be the name of a file or a folder.

    Args:
        name: The argument that holds the text, for messages.
        value: The text.

    Returns:
        The text, unchanged.

    Raises:
        UserError: The text contains separators, consists of dots, or is too long.
    """
    if value.strip(" .") == "" or len(value.encode(errors="replace")) > 100 or set(value) & set("/\\\0"):
        raise UserError(f"{name}={value} cannot name a file; use at most 100 letters, digits, - and _")
    return value


def sizes_of_folders(folders: Iterable[Path]) -> dict[Path, int]:
    """Return the size of the files in each existing folder, in bytes."""
    return {
        folder: sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        for folder in folders
        if folder.is_dir()
    }
